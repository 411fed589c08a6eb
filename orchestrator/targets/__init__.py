"""The engines that hold the hosts."""
