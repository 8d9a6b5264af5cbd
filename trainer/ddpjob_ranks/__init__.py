"""Processes that train as one: who they are, how they meet, agree, watch each other and end. Not what they train."""
