"""Training curves (COCO-LM, Figures 7 and 8; ISS, Figure 2)."""
