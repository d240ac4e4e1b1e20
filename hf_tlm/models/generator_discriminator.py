"""A generator that corrupts texts, and a discriminator that detects or corrects replaced tokens (Clark et al. 2020)."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)

from hf_tlm.errors import ModelError
from hf_tlm.hub.repo import checkpoint_folder
from hf_tlm.models.base import (
    TrainedModel,
    body_of,
    building,
    default_attention_mask,
    embedding_weight,
    encode,
    encode_masked_positions,
    layer_classes,
    true_indices,
)
from hf_tlm.models.cpu_kernels import use_cpu_kernels
from hf_tlm.models.families import EncodedTexts, family_of
from hf_tlm.models.generator_discriminator_parts import (
    ClmHeads,
    ContrastHead,
    CorruptionOutput,
    Generator,
    LmLoss,
    RtdHead,
    clm_heads_state,
    load_auxiliary,
    rtd_head_state,
    sample_tokens,
    shared_parameters,
)
from hf_tlm.models.loading import hub_options, load_classifier, parse_id2label, reading, without_reports
from hf_tlm.models.tlm import renew_classifier
from hf_tlm.utils.options import named
from hf_tlm.utils.shown import kind_of

logger = logging.getLogger(__name__)

TEMPERATURE = 0.8


@contextmanager
def _without_side_effects(device: torch.device) -> Iterator[None]:
    """Run the block without gradients, and restore the state of the random number generators after it."""
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield


def _check_embeddings(main: PreTrainedModel, auxiliary: PreTrainedModel, *, corrects: bool, frozen: bool) -> None:
    """Raise a ModelError if the sizes of the token embeddings do not fit the body, or those of the other model."""
    (tokens, width), (auxiliary_tokens, auxiliary_width) = (embedding_weight(model).shape for model in (main, auxiliary))
    if corrects and width != main.config.hidden_size:
        raise ModelError(
            "Corrective language modelling needs hidden states and token embeddings of equal size; those of this "
            f"{main.config.model_type} body have {main.config.hidden_size} and {width} dimensions. Give both the same size, "
            "or choose another body: cocolm, modernbert."
        )
    if frozen and auxiliary_tokens != tokens:
        raise ModelError(
            f"The frozen auxiliary model predicts {auxiliary_tokens:,} tokens, and the main model has {tokens:,}. "
            "Give both the same vocabulary."
        )
    if not frozen and (auxiliary_tokens, auxiliary_width) != (tokens, width):
        raise ModelError(
            "The auxiliary model shares the main model's token embeddings, and theirs differ: "
            f"{(auxiliary_tokens, auxiliary_width)} and {(tokens, width)} (vocabulary, width). Give both the same "
            "vocabulary and embedding_size."
        )


class GeneratorDiscriminator(TrainedModel):
    """A generator that corrupts texts and a discriminator that reads them: ELECTRA, ALE or COCO-LM.

    COCO-LM calls them the auxiliary and the main model, and so do options and parameter names. They are the two networks of
    ELECTRA (Clark et al. 2020, section 2), of ALE (Shao, section II.E) and of COCO-LM (Meng et al., NeurIPS 2021, section
    3.3).

    `auxiliary` is a masked LM. At the masked positions tokens are sampled from its softmax, and `main` reads the result.
    No gradient flows through the sampling. `main` is a stock `ForSequenceClassification` model, so that a labelled task can
    be learned together with the corruption (TLM). Its hidden states are also read by `rtd_head`, which detects replaced
    tokens, or by `clm_heads`, which correct them.

    The models share the token embeddings, and position and type embeddings if their shapes are equal.

    Build one with `from_config` or `from_checkpoint`.

    Args:
        temperature: of the softmax that replacements are sampled from (0.8 in the ALE paper, section IV.B; 1 in ELECTRA's);
            0 selects the most likely token.
        heads: `rtd`; `rtd_linear`, whose head is one linear layer (COCO-LM's ablations); or `clm`, which needs a body as
            wide as its token embeddings (COCO-LM's, ModernBERT) and computes the loss of its LM head by `lm_loss`, which
            `TlmTrainer` sets from its `CorrectiveLm`.
        apart: tokens are sampled in a separate pass, without dropout and gradient, and the auxiliary model's loss is that
            of a second pass (COCO-LM); False: one pass serves both (ELECTRA).
        replacements: `sampled`; or `random`, any token with equal probability (COCO-LM, Table 3): the auxiliary model
            learns as before, but nothing depends on it.
        frozen: the auxiliary model is not trained; it has embeddings of its own and no dropout (Table 3, "w. Converged
            Auxiliary").
        share_embedding_norm: the LayerNorm of the embeddings is shared too, as in Google's ELECTRA.
        scl_projection: `none`: the vectors of sequence contrastive learning are the first tokens' hidden states (the paper);
            or `mlp`: a head projects these hidden states (the published code).

    Raises:
        ModelError: the two have different token embeddings; or an argument is out of range, or does not fit the body.
    """

    def __init__(
        self,
        main: PreTrainedModel,
        auxiliary: PreTrainedModel | None = None,
        temperature: float = TEMPERATURE,
        *,
        heads: str = "rtd",
        apart: bool = False,
        replacements: str = "sampled",
        frozen: bool = False,
        scl_projection: str = "none",
        share_embedding_norm: bool = False,
    ):
        if not (isinstance(main, PreTrainedModel) and isinstance(auxiliary, PreTrainedModel)):
            received = f"{kind_of(main)} alone" if auxiliary is None else f"{kind_of(main)} and {kind_of(auxiliary)}"
            raise ModelError(
                "GeneratorDiscriminator consists of two stock models, a discriminator with a classifier and a masked LM; "
                f"received {received}. Call GeneratorDiscriminator.from_config(config, generator_config(config)), or "
                "GeneratorDiscriminator.from_checkpoint(folder, id2label=task.id2label)."
            )
        super().__init__(main.config)
        if not 0 <= temperature < math.inf:
            raise ModelError(f"temperature must be a number, 0 or more; received {temperature}.")
        for name, value, allowed in (
            ("heads", heads, ("rtd", "rtd_linear", "clm")),
            ("replacements", replacements, ("sampled", "random")),
            ("scl_projection", scl_projection, ("none", "mlp")),
        ):
            if value not in allowed:
                raise ModelError(f"{name} must be {' or '.join(allowed)}; received {value!r}.")
        _check_embeddings(main, auxiliary, corrects=heads == "clm", frozen=frozen)
        self.main, self.auxiliary = main, Generator(auxiliary, frozen)
        self.rtd_head = self.clm_heads = None
        if heads == "clm":
            if main.config.model_type == "cocolm":
                main.config.update({"copy_head": True, "lm_transform": False})  # For the export.
            self.clm_heads = ClmHeads(main.config)
        else:
            self.rtd_head = RtdHead(main.config, dense=heads == "rtd")
        self.scl_head = ContrastHead(main.config) if scl_projection == "mlp" else nn.Identity()
        self.temperature, self.apart, self.replacements = temperature, apart, replacements
        self.scl_projection, self.share_embedding_norm = scl_projection, share_embedding_norm
        # The loss function of the LM head in `clm_heads`, `CorrectiveLm.lm_loss`.
        self.lm_loss: LmLoss | None = None
        # False: texts are classified as they are, which needs no auxiliary model (stage 2), for `applied_parameters`.
        self.corrupts = True
        # Tokens of the second view as a share of the first's (`TlmCollator.crop_fraction`), for `applied_parameters`.
        self.second_view = 0.0
        # False: the second view is read without a gradient and has no influence on training.
        self.second_view_learns = True
        # Draws random numbers for batches without `uniforms`; None is torch's global generator.
        self.generator: torch.Generator | None = None
        self._no_split_modules = layer_classes(main.base_model) | layer_classes(auxiliary.base_model)
        ties = shared_parameters(main, auxiliary, frozen, share_embedding_norm)
        if heads == "clm":
            table = embedding_weight(main)
            ties["clm_heads.lm_head.weight"] = next(f"main.{n}" for n, p in main.named_parameters() if p is table)
        self._tie(ties)
        if frozen:
            self.auxiliary.requires_grad_(False).eval()
        for stock in (main, auxiliary):
            use_cpu_kernels(stock)

    @classmethod
    def from_config(
        cls,
        config: PreTrainedConfig,
        generator_config: PreTrainedConfig | str | os.PathLike,
        temperature: float = TEMPERATURE,
        **options,
    ) -> GeneratorDiscriminator:
        """Build a randomly initialised model (seed it with `transformers.set_seed`).

        Args:
            generator_config: see `hf_tlm.models.generator_config`; or a checkpoint, Hub id or folder, of a masked LM.
            options: further arguments of the class.

        Raises:
            ModelError: a `model_type` is not a supported encoder; see also the class.
        """
        family_of(config)
        with building(config):
            main = AutoModelForSequenceClassification.from_config(config)
            if isinstance(generator_config, (str, os.PathLike)):
                auxiliary = load_auxiliary(os.fspath(generator_config))
            else:
                family_of(generator_config)
                auxiliary = AutoModelForMaskedLM.from_config(generator_config)
        return cls(main, auxiliary, temperature, **options)

    @classmethod
    def from_checkpoint(
        cls,
        model_name_or_path: str,
        auxiliary_name_or_path: str | None = None,
        *,
        id2label: dict[int, str],
        temperature: float = TEMPERATURE,
        revision: str | None = None,
        trust_remote_code: bool = False,
        attn_implementation: str | None = None,
        **options,
    ) -> GeneratorDiscriminator:
        """Load both transformers from checkpoints: Hub ids or folders, including those that `export_stock` wrote.

        Heads that a checkpoint lacks, and a classifier for other classes, are initialised at random. Shared embeddings
        are the main model's. The weights are float32, whatever the dtype of the checkpoints.

        Args:
            model_name_or_path: a discriminator such as google/electra-small-discriminator, or any encoder.
            auxiliary_name_or_path: a masked LM with the same vocabulary and width of the token embeddings. Default: the
                folder `generator` in `model_name_or_path`.
            revision: of `model_name_or_path`.
            options: further arguments of the class.

        Raises:
            HubError: see `checkpoint_folder`.
            ModelError: a checkpoint cannot be loaded or lacks weights of its body, or the two do not fit; a name is not
                valid; or `id2label` does not name the classes from 0 on.
        """
        name = named("model_name_or_path", model_name_or_path, ModelError, needed=True)
        auxiliary_name = named("auxiliary_name_or_path", auxiliary_name_or_path, ModelError)
        id2label = parse_id2label(id2label)
        folder = checkpoint_folder(name, revision, trust_remote_code=trust_remote_code)
        hub = hub_options(revision, trust_remote_code, attn_implementation)
        corrects = options.get("heads") == "clm"
        with without_reports(), reading("a model from", name):
            main, _ = load_classifier(folder, name, id2label=id2label, **hub)
            state = (clm_heads_state if corrects else rtd_head_state)(folder, hub)
        auxiliary = load_auxiliary(auxiliary_name, name, **hub)
        model = cls(main, auxiliary, temperature, **options)
        heads = model.clm_heads if corrects else model.rtd_head
        assert heads is not None
        if state is None or state.keys() != heads.state_dict().keys():
            missing = "no heads for corrective language modelling" if corrects else "no head for replaced tokens"
            logger.warning("%s has %s: a new one is initialised at random.", name, missing)
        else:
            heads.load_state_dict(state)
        return model

    @property
    def further_parameters(self) -> float:
        """Parameters applied by sampling apart and by the second view, less those that are not applied or not trained.

        A forward pass counts as a third of a forward and backward pass.
        """
        shared = set(self.main.parameters())
        auxiliary = sum(value.numel() for value in self.auxiliary.parameters() if value not in shared)
        thirds = -3 if not self.corrupts else -2 if self.auxiliary.frozen else int(self.apart)
        view = self.second_view * body_of(self.main).num_parameters()
        return thirds * auxiliary / 3 + (view if self.second_view_learns else view / 3)

    def get_input_embeddings(self) -> nn.Module:
        return self.main.get_input_embeddings()

    def reset_classifier(self) -> None:
        """Reinitialise the classification head at random; everything else stays."""
        renew_classifier(self.main)

    def forward(
        self,
        input_ids: torch.LongTensor,
        attention_mask: torch.LongTensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        text_ids: torch.LongTensor | None = None,
        first_tokens: torch.LongTensor | None = None,
        mlm_labels: torch.LongTensor | None = None,
        labels: torch.LongTensor | None = None,
        uniforms: torch.FloatTensor | None = None,
        **crops: torch.LongTensor,
    ) -> CorruptionOutput:
        """Corrupt the texts and predict what was replaced, given `mlm_labels`; else classify the texts as they are.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, text_ids, first_tokens: see `TlmModel.forward`.
            mlm_labels: int64 [R, S], the original token where `input_ids` is masked, -100 elsewhere.
            labels: int64 [B]. Class logits are computed if it is given, or if `mlm_labels` is not.
            uniforms: float [R, S], in [0, 1): random numbers that sample the replacements at masked positions. Default:
                drawn from `self.generator`.
            crops: another view of the same texts, which the main model reads too: the first six arguments with the prefix
                `crop_` (`crop_input_ids`, `crop_attention_mask`, ...); their rows have a shape of their own.
        """
        mask = default_attention_mask(input_ids, attention_mask, text_ids)
        inputs = (mask, token_type_ids, position_ids, text_ids, first_tokens)
        output = CorruptionOutput()
        if mlm_labels is None:
            return self._predict(output, encode(body_of(self.main), input_ids, *inputs), None, labels)
        masked, unpadded = true_indices(mlm_labels != -100), true_indices(mask.bool())
        samples_apart = self.apart and self.auxiliary.training
        with self.auxiliary.without_dropout() if samples_apart else nullcontext():
            hidden = encode_masked_positions(self.auxiliary.base_model, masked, input_ids, *inputs)
            output, corrupted = self._corrupt(hidden, masked, unpadded, input_ids, mlm_labels, uniforms)
        if samples_apart:
            hidden = encode_masked_positions(self.auxiliary.base_model, masked, input_ids, *inputs)
            output.mlm_loss = self._mlm_loss(hidden, masked, mlm_labels)
        texts, cropped = encode(body_of(self.main), corrupted, *inputs), None
        if crops:
            with nullcontext() if self.second_view_learns else _without_side_effects(input_ids.device):
                cropped = encode(body_of(self.main), **{name.removeprefix("crop_"): rows for name, rows in crops.items()})
        return self._predict(output, texts, cropped, labels, unpadded, corrupted, mlm_labels)

    # The number of masked tokens differs from batch to batch: compiled, this part would be compiled again and again.
    @torch.compiler.disable
    def _corrupt(
        self,
        hidden: torch.Tensor,
        masked: torch.Tensor,
        unpadded: torch.Tensor,
        input_ids: torch.Tensor,
        mlm_labels: torch.Tensor,
        uniforms: torch.Tensor | None,
    ) -> tuple[CorruptionOutput, torch.Tensor]:
        """Return the auxiliary model's part of the output, and the ids that the main model reads, int64 [R, S].

        Args:
            hidden: float [M, H], of the masked tokens.
            masked, unpadded: int64 [M] and [T], indices of the masked tokens and of those that are not padding.
        """
        originals = mlm_labels.flatten()[masked]
        if uniforms is None:
            uniforms = torch.rand(originals.shape, generator=self.generator, device=originals.device)
        else:
            uniforms = uniforms.flatten()[masked]
        sampled, guesses = torch.empty_like(originals), torch.zeros_like(originals, dtype=torch.bool)

        def sample(rows: slice, logits: torch.Tensor) -> None:
            if self.replacements == "random":
                sampled[rows] = (uniforms[rows] * logits.shape[1]).long()
            else:
                sampled[rows] = sample_tokens(logits, uniforms[rows], self.temperature)
            guesses[rows] = logits.argmax(dim=-1) == originals[rows]

        loss = self.auxiliary.mlm_head(hidden, originals, self.max_logits, visit=sample)
        corrupted = input_ids.flatten().scatter(0, masked, sampled)
        replaced = torch.zeros_like(corrupted, dtype=torch.bool).scatter(0, masked, sampled != originals)
        output = CorruptionOutput(mlm_loss=loss, replaced=replaced[unpadded], guesses=guesses.sum())
        return output, corrupted.view_as(input_ids)

    @torch.compiler.disable
    def _mlm_loss(self, hidden: torch.Tensor, masked: torch.Tensor, mlm_labels: torch.Tensor) -> torch.Tensor:
        return self.auxiliary.mlm_head(hidden, mlm_labels.flatten()[masked], self.max_logits)

    @torch.compiler.disable
    def _predict(
        self,
        output: CorruptionOutput,
        texts: EncodedTexts,
        cropped: EncodedTexts | None,
        labels: torch.Tensor | None,
        unpadded: torch.Tensor | None = None,
        corrupted: torch.Tensor | None = None,
        mlm_labels: torch.Tensor | None = None,
    ) -> CorruptionOutput:
        """Add the main model's part to the output.

        Args:
            unpadded, corrupted, mlm_labels: int64 [T], [R, S], [R, S]; None if the texts are not corrupted.
        """
        if mlm_labels is not None and corrupted is not None:
            hidden, ids, originals = (rows.flatten(0, 1)[unpadded] for rows in (texts.hidden, corrupted, mlm_labels))
            if self.rtd_head is not None:
                output.rtd_logits = self.rtd_head(hidden)
            if self.clm_heads is not None:
                if self.lm_loss is None:
                    raise ModelError(
                        "This model corrects tokens, but its lm_loss, the loss of its LM head, is not set. TlmTrainer takes "
                        "it from a CorrectiveLm among its objectives; elsewhere, set model.lm_loss = CorrectiveLm().lm_loss."
                    )
                masked = originals != -100
                originals = torch.where(masked, originals, ids)
                options = (hidden, originals, ids, masked, self.lm_loss, self.max_logits)
                output.copy_logits, output.lm_loss, output.lm_right = self.clm_heads(*options)
        if cropped is not None:
            vectors = (self.scl_head(view.first()[:, 0]) for view in (texts, cropped))
            output.corrupted_vectors, output.cropped_vectors = vectors
        if labels is not None or mlm_labels is None:
            output.logits = family_of(self.main.config).classify(self.main, texts)
        return output
