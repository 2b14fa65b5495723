"""Kimi K2: DeepSeek V3's computation under its own model_type, with 384 experts in one group (Moonshot AI 2025).

Its configuration names remote code, which is never executed: the code is DeepSeek's. In a GGUF it is arch deepseek2.
"""
from __future__ import annotations

from uaii.frontend.families.deepseek_v3 import DEEPSEEK_V3

KIMI_K2 = DEEPSEEK_V3.but(name="kimi_k2", hf=(("kimi_k2", "DeepseekV3ForCausalLM"),), brands=("Kimi K2",), borrows=True)
FAMILIES = (KIMI_K2,)
