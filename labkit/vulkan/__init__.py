"""The only folder that imports `vulkan`: devices, memory, kernels, recorded programs and the shader compiler."""
