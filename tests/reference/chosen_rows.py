"""What the reference needs to choose latent rows as flashmoe does: of rows with equal scores torch.topk may take any; here it
is made to take the first, and how near the cut is to another choice is watched.
"""

import torch

INDEXERS = ("DeepseekV32Indexer", "GlmMoeDsaIndexer", "Glm5NextTextIndexer")


class FirstOfEqual:
    """Makes the choice of these indexers stable."""

    def __init__(self, indexers):
        self.smallest = float("inf")
        self.ties = 0
        self.within = False
        # The stand-ins for CUDA libraries have no streams to ask.
        torch.cuda.is_current_stream_capturing = lambda: False
        torch.cuda.graphs.is_current_stream_capturing = lambda: False
        self.plain = torch.Tensor.topk
        torch.Tensor.topk = lambda scores, *args, **kwargs: self.topk(scores, *args, **kwargs)
        self.handles = [indexer.register_forward_pre_hook(self.enter) for indexer in indexers]

    def enter(self, *_):
        self.within = True

    def topk(self, scores, k, dim=-1, largest=True, sorted=True):
        if not self.within:
            return self.plain(scores, k, dim, largest, sorted)
        assert dim == -1 and largest
        best = torch.sort(scores, dim=-1, descending=True, stable=True)
        if k < scores.shape[-1]:
            last, first = best.values[..., k - 1], best.values[..., k]
            gaps = (last - first)[first > torch.finfo(first.dtype).min / 2]  # the others are not seen yet
            self.ties += int((gaps == 0).sum())
            # Equal scores are no near tie: both are nothing, however they are computed.
            self.smallest = min([self.smallest, *gaps[gaps > 0].tolist()])
        return type(self.plain(scores, k))((best.values[..., :k], best.indices[..., :k]))

    def take(self):
        """The smallest distance from the cut in the choice that was just made."""
        self.within = False
        smallest, self.smallest = self.smallest, float("inf")
        return smallest
