"""What space a model puts texts into (ISS, Figure 4; COCO-LM, Figures 1, 5 and 6)."""
