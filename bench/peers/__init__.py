"""librope beside other implementations of RoPE on the CPU: scripts/bench --peers. README.md tells how."""
