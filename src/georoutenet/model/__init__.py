"""The paper in plain PyTorch: two encoders and their heads, from coordinates to scores."""
