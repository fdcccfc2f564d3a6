"""The other way in: gnndrive's parts behind PyTorch Geometric's own interfaces."""
