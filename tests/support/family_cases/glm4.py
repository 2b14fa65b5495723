"""Tiny GLM-4-0414 checkpoints: GLM with norms after attention and MLP."""
from __future__ import annotations

from family_cases import glm
from gguf_names import Converted
from tiny_models import Case, Config, Shape

BASE: Config = glm.BASE | {"architectures": ["Glm4ForCausalLM"], "model_type": "glm4"}


def shapes(c: Config) -> dict[str, Shape]:
    """Names and shapes of a GLM-4-0414 folder; post_attention_layernorm stands before the MLP."""
    return glm.glm_shapes(c, "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")


PLAIN = Case("f32", BASE, shapes)
CASES = glm.cases(PLAIN)
MUTATIONS = glm.MUTATIONS
NAMES = glm.NAMES | {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}
GGUF = Converted("glm4", NAMES, glm.metadata, permuted=False, optional=glm.OPTIONAL, outside=glm.OUTSIDE)
SHORT = PLAIN.but(lengths=(40,))
GGUF_CASES = (SHORT, SHORT.set("no-biases", attention_bias=False, tie_word_embeddings=True, rms_norm_eps=0.5))
