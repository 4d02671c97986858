"""Answers drawn by vLLM: by servers somewhere, or by an engine beside the trainer in this process.

servers.py      the generator that shares requests among servers
server.py       one server over HTTP: health, answers, updates
abilities.py    what a server says of itself, and whether that serves a run
inprocess.py    the generator on vLLM's own `LLM`, asleep while training
weights.py      what is pushed, all weights or adapters, and how: files in shared memory, NCCL or CUDA IPC
translate.py    between our sampling settings and completions and vLLM's
probe.py        whether what vLLM answers is what the trained model would say
launch.py       start a server with the settings that training needs
plugin.py, files_engine.py    what runs inside vLLM: the receiving end of weight files
"""
