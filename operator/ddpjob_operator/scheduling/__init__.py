"""Scheduling providers: what schedules the pods of a gang together. Pure, one module for each, behind `interface.Provider`."""
