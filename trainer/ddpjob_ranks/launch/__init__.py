"""How ranks come to be: who a process is, its children, the meeting of all ranks and their comparing of notes."""
