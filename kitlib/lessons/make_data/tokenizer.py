"""The tokenizer of the tiny models: 64 symbols, each of them decodable, and a ChatML template.

The vocabulary is exactly as large as the models' embedding, so that every id that a model can sample has a text: an id
without one would crash or vanish in decoding. The chat template is prefix consistent: the text of a conversation never
changes when messages are added behind it, so an agent loop may keep the tokens it sampled and only append the rest.

The models are Qwen3 and not Qwen2 because of `AutoTokenizer`: for a folder whose config.json says qwen2 it puts the
pre-tokenizer of Qwen2 in place of ours without a word.
"""

from __future__ import annotations

import re
import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN, IM_START, IM_END = "<|endoftext|>", "<unk>", "<|im_start|>", "<|im_end|>"
WORDS = ("system", "user", "assistant", "tool", "####", "<tool_call>", "</tool_call>")
CHARACTERS = "\n " + string.digits + "+-*/=?().,:!'#_" + string.ascii_lowercase
SYMBOLS: tuple[str, ...] = (PAD, UNKNOWN, IM_START, IM_END, *WORDS, *CHARACTERS)

# Content is written as it is, not trimmed, without a default system message: a sampled turn must come back as it was.
# With `tool_calls` a message in the structured form of OpenAI and verl renders to the same text as the plain form.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}
{%- for call in message['tool_calls'] or [] -%}
{{ '<tool_call>' + call['function']['arguments']['expression'] + '</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def build_tokenizer(model_max_length: int = 512) -> PreTrainedTokenizerFast:
    """A word-level tokenizer over SYMBOLS. `<tool_call>` is an ordinary symbol: decoding never skips it as special."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {symbol: token_id for token_id, symbol in enumerate(SYMBOLS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    longest_first = sorted(WORDS, key=len, reverse=True)
    pattern = "|".join(map(re.escape, longest_first)) + r"|[\s\S]"
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=IM_END,
        additional_special_tokens=[IM_START],
        clean_up_tokenization_spaces=False,
        model_max_length=model_max_length,
        model_input_names=["input_ids", "attention_mask"],
        padding_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
