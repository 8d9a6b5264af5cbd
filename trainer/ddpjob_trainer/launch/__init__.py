"""How ranks come to be: command line, who a process is, its children, the meeting of all ranks and their comparing of notes."""
