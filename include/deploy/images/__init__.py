"""The images and what runs in them beside the components."""
