"""Rows of one call with different lengths, padded on either side as other runtimes do."""
from __future__ import annotations

import numpy as np

from uaii.backends.ort.session import Ids, Logits, Session
from uaii.ir.diag import Usage


def unpadded(ids: Ids, mask: Ids) -> list[Ids]:
    """The real tokens of each row of ids [B,S]; mask [B,S] is 1 where there is one, in one run per row.

    Raises Usage S614 for a mask with holes or an empty row.
    """
    ids, mask = np.asarray(ids), np.asarray(mask)
    if ids.shape != mask.shape or ids.ndim != 2:
        raise Usage("S614", f"ids of shape {list(ids.shape)} with an attention mask of shape {list(mask.shape)}")
    rows = []
    for line, seen in zip(ids, mask != 0, strict=True):
        at = np.flatnonzero(seen)
        if not at.size or at[-1] - at[0] + 1 != at.size:
            raise Usage("S614", "the attention mask must have one run of ones in each row",
                        why="padding stands before or after a prompt, not inside it")
        rows.append(line[at[0]:at[-1] + 1])
    return rows


def batch_logits(session: Session, ids: Ids, mask: Ids) -> Logits:
    """float32 [B,S,V] of padded prompts [B,S], each row equal to its single run; zeros where there is padding.

    The attention kernel counts keys from the left, so the rows are moved there for the run and their logits back.
    """
    rows = unpadded(ids, mask)
    if session.manifest.kv_in_place and not session.manifest.whole_prompt:
        lengths = np.array([len(r) for r in rows])
        right = np.zeros((len(rows), lengths.max()), np.int64)
        for line, row in zip(right, rows, strict=True):
            line[:len(row)] = row
        made = list(session.step(right, (np.arange(right.shape[1]) < lengths[:, None]).astype(np.int64),
                            session.cache(len(rows)), keep_logits=0))
    else:
        made = [session.logits(row) for row in rows]
    out = np.zeros((*np.shape(ids), session.vocab_size), np.float32)
    for line, seen, logits, row in zip(out, np.asarray(mask) != 0, made, rows, strict=True):
        line[seen] = logits[:len(row)]
    return out
