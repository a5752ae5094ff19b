"""What molflt is compared with on atoms: dense softmax attention, and kernelised attention without positions."""
