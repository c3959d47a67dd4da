"""Workers hold models and compute on tensors; the trainer only tells them which rows.

worker_group.py  the workers as the trainer sees them
bridge.py        from metadata to tensors and back
actor.py         compute_log_prob, update_actor
critic.py        compute_values, update_critic
reference.py     compute_ref_log_prob
worker.py        what all three share; training.py what the two that learn share
losses.py        the actor's loss on a micro-batch
update_record.py what an update did to each token
lora.py          adapters beside the linear layers; fused.py faster kernels on a GPU
engine/          FSDP2 model, optimizer, schedule, token scores; saved and loaded
state_files.py   files of a checkpoint: data, no code
rows.py          padded rows and micro-batches
balance.py       equal work for every rank
padding.py       padding rows, response columns
"""
