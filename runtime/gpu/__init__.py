"""The runner for GPUs: weights, steps, graphs and sampling over the Triton kernels."""
