"""The viewer: pages that show trajectories and training curves, each one self-contained HTML file."""
