"""Processes that act as one: who they are, how they meet, agree, watch each other and end. Not what they compute."""
