"""The ddpjob operator: one DDPJob is one gang of pods, driven as a unit to one clear outcome."""
