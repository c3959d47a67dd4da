"""Makes everything under data/ again: `python -m kitlib.lessons.make_data [--task mult_tool] [--output data]`.

    tasks.py       the three tasks: problems, dataset rows in verl's schema, demonstrations with their built-in flaws
    tokenizer.py   64 symbols and the chat template
    sft.py         supervised training of a tiny Qwen3 on the demonstrations
    evaluate.py    accuracy by real multi-turn generation, with the calculator answering
    __main__.py    the command: writes to a temporary folder, then moves each finished piece into place

The data comes out bit for bit. The checkpoints come out with the same accuracies: the last bit of a matrix product may
differ between machines, and two thousand steps amplify that.
"""
