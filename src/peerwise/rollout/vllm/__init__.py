"""Answers drawn by vLLM: by servers somewhere, or by an engine beside the trainer in this process.

servers.py      the generator that shares requests among servers
server.py       one server over HTTP: health, what it must be able to do, answers, weight updates
inprocess.py    the generator on vLLM's own `LLM`, asleep while training
weights.py      how the policy's weights reach vLLM: files in shared memory, NCCL or CUDA IPC
translate.py    between our sampling settings and completions and vLLM's
probe.py        whether what vLLM answers is what the trained model would say
launch.py       start a server with the settings that training needs
plugin.py, files_engine.py    what runs inside vLLM: the receiving end of weight files
"""
