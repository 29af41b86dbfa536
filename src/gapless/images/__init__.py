"""The picture: decode, turn upright, cut into crops. CPU only; knows nothing of models but the crop settings."""
