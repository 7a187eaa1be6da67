import torch

torch.set_num_threads(1)  # the tensors of these tests are too small to share
