"""Models of published pretrained weights against transformers', tiny and of drawn weights. Named parity."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.pretrained import FAMILIES, UNTIED, VOCABULARY, published, sequences
from raysum import systems
from raysum.errors import UserError
from raysum.importing.huggingface.loading import KINDS, load, map_arrays, with_new
from raysum.importing.huggingface.saving import save
from raysum.models.batch import Batch, Source
from raysum.models.family.parallel import ParallelAttention
from raysum.runs.restore import fill

pytest.importorskip("transformers")


@pytest.fixture(scope="module", params=FAMILIES + UNTIED)
def theirs(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, published(request.param, folder)


def ours(folder, **mix):
    found = load(folder, **mix)
    return fill(systems.build(found.spec), with_new(found.spec, found.weights), str(folder))


def flat(model):
    return "WW" if model.config.model_type == "led" else "SS"


def told(model, ids):
    """What LED is told beside the ids: that its first token is global."""
    first = torch.zeros_like(ids).index_fill(1, torch.tensor([0]), 1)
    return {"global_attention_mask": first} if model.config.model_type == "led" else {}


def source_of(paragraphs, counts):
    lengths = torch.tensor([len(ids) for ids in paragraphs])
    return Source(torch.cat(paragraphs), lengths, torch.tensor(counts))


def padded(rows):
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, (torch.arange(ids.shape[1]) < lengths[:, None]).long()


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def test_parity_of_a_checkpoint_as_published(theirs):
    folder, model = theirs
    lengths = (300, 7, 1024)
    rows, target = sequences(lengths), torch.stack(sequences((40, 40, 40), seed=2))
    ids, mask = padded(rows)
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target, **told(model, ids))
        own = ours(folder, encoder=flat(model)).eval()
        memory = own.encode(source_of(rows, [1, 1, 1]))
        logits = own(memory.source, target)
    states = torch.cat([row[:size] for row, size in zip(expected.encoder_last_hidden_state, lengths, strict=True)])
    assert relative(memory.tokens, states) < 1e-5
    assert relative(logits, expected.logits) < 1e-5
    assert logits.shape[-1] == VOCABULARY


def test_parity_of_paragraphs_read_alone(theirs):
    """Fusion-in-Decoder: transformers' encoder, run once a paragraph, and its decoder over all their states."""
    from transformers.modeling_outputs import BaseModelOutput

    folder, model = theirs
    if model.config.model_type == "led":
        return  # reads the flat sequence
    rows, counts = sequences((50, 3, 21, 130, 1)), [3, 2]
    target = torch.stack(sequences((12, 12), seed=2))
    with torch.no_grad():
        states = [model.get_encoder()(input_ids=row[None]).last_hidden_state[0] for row in rows]
        whole, mask = padded([torch.cat(states[:3]), torch.cat(states[3:])])
        expected = model(encoder_outputs=BaseModelOutput(whole), attention_mask=mask, decoder_input_ids=target).logits
        own = ours(folder).eval()
        memory = own.encode(source_of(rows, counts))
        logits = own(memory.source, target)
    assert relative(memory.tokens, torch.cat(states)) < 1e-5
    assert relative(logits, expected) < 1e-5


def test_parity_of_gradients(theirs):
    folder, model = theirs
    rows, target = sequences((60, 9)), torch.stack(sequences((15, 15), seed=2))
    ids, mask = padded(rows)
    model.zero_grad()
    logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target[:, :-1], **told(model, ids)).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), reduction="sum").backward()
    own = ours(folder, encoder=flat(model))
    objective = systems.objective(own.spec, own, 0.0).train()
    objective(Batch(source_of(rows, [1, 1]), target)).backward()
    values = [*model.named_parameters(), *model.named_buffers()]
    state = {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in values}
    arrays = {name.removeprefix("model.").removeprefix("led."): value.numpy() for name, value in state.items()}
    if "final_logits_bias" in arrays:
        arrays["final_logits_bias"] = arrays["final_logits_bias"].reshape(-1)
    if own.source_embedding is not None:
        assert not arrays.pop("shared.weight").any()
    expected = map_arrays(arrays, own.spec, KINDS[model.config.model_type])
    found = {name: value.grad for name, value in own.named_parameters() if value.grad is not None}
    assert {name for name, value in expected.items() if value.any()} == found.keys()
    for name, grad in found.items():
        assert relative(grad, expected[name]) < 2e-5, name


def test_steps_with_a_cache_give_the_logits_of_teacher_forcing(theirs):
    own = ours(theirs[0]).eval()
    source, target = source_of(sequences((30, 8, 140)), [2, 1]), torch.stack(sequences((150, 150), seed=2))
    with torch.no_grad():
        whole = own(source, target)
        state = own.start(own.encode(source), 1)
        for place in range(target.shape[1]):
            logits, _ = own.step(target[:, place], state)
            assert relative(logits, whole[:, place]) < 1e-5


def test_inserted_global_layers_change_no_bit(theirs):
    source, target = source_of(sequences((30, 8, 14)), [2, 1]), torch.stack(sequences((9, 9), seed=2))
    with torch.no_grad():
        plain, informed = (ours(theirs[0], encoder=mix).eval()(source, target) for mix in ("LL", "GLGLG"))
    assert torch.equal(plain, informed)


def test_too_long_a_sequence_is_told(theirs):
    own = ours(theirs[0]).eval()
    if own.entry.source_places is None:
        return
    most = len(own.entry.source_places.weight) - own.entry.source_places.offset
    key = "source_tokens in decoding" if own.spec.joins_paragraphs else "paragraph_tokens"
    with pytest.raises(UserError, match=rf"positions for {most} tokens, .* {most + 1}: .*{key}"):
        own.encode(source_of(sequences((most + 1,)), [1]))


@pytest.mark.parametrize("letter", ["P", "V"])
def test_other_decoder_letters_begin_as_the_pretrained_one(theirs, letter):
    source, target = source_of(sequences((30, 8, 14, 1)), [3, 1]), torch.stack(sequences((9, 9), seed=2))
    plain, other = (ours(theirs[0], decoder=mix).eval() for mix in ("FF", letter * 2))
    with torch.no_grad():
        assert relative(other(source, target), plain(source, target)) < 2e-6
        found, expected = (model.decode(target, model.encode(source), attention=True)[1] for model in (other, plain))
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("mix", ["P", "V", "G"])
def test_what_is_new_has_a_gradient_by_the_second_step(theirs, mix):
    own = ours(theirs[0], **({"encoder": "LGL"} if mix == "G" else {"decoder": mix * 2})).train()
    objective = systems.objective(own.spec, own, 0.0)
    batch = Batch(source_of(sequences((30, 8, 14, 3)), [3, 1]), torch.stack(sequences((9, 9), seed=2)))
    optimizer = torch.optim.Adam((p for p in own.parameters() if p.requires_grad), 1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        objective(batch).backward()
        optimizer.step()
    dead = [name for name, value in own.named_parameters() if value.requires_grad and not value.grad.any()]
    assert not dead


def test_a_gate_of_one_is_the_fusion_of_the_papers(theirs):
    """PHT eq. 9: words inside paragraphs, weighted by the mean over heads of the attention to paragraphs."""
    own = ours(theirs[0], decoder="PP").eval()
    cross = own.decoder[0].cross
    source = source_of(sequences((30, 8, 14, 3)), [3, 1])
    with torch.no_grad():
        for value in cross.parameters():
            value.normal_(std=0.2)
        cross.gate.fill_(1.0)
        keys = cross.project_source(own.encode(source))
        x = torch.randn(2, 5, own.spec.width)
        (found, words), (expected, expected_words) = cross(x, keys), ParallelAttention.forward(cross, x, keys)
    assert relative(found, expected) < 1e-5
    torch.testing.assert_close(words.report(True), expected_words.report(True), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["t5-gated", "mt5"])
def test_parity_of_the_shape_of_t5_small_v1_1(tmp_path, name):
    """512 wide with 6 heads of 64: neither do the heads fill the width, nor do 6 divide it."""
    sizes = {"d_model": 512, "num_heads": 6, "d_kv": 64, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 1}
    model = published(name, tmp_path, **sizes)
    rows, target = sequences((60,)), torch.stack(sequences((9,), seed=2))
    with torch.no_grad():
        expected = model(input_ids=rows[0][None], decoder_input_ids=target).logits
        for mix in ({"encoder": "LGL", "decoder": "P"}, {"encoder": "SS", "decoder": "V"}):
            own = ours(tmp_path, **mix).eval()
            assert relative(own(source_of(rows, [1]), target), expected) < 1e-4
            assert own.spec.pooling_heads == 4


@pytest.mark.parametrize("name", ["bart", "t5"])
@pytest.mark.parametrize("kept", ["encoder.embed_tokens", "decoder.embed_tokens", "lm_head"])
def test_parity_of_files_that_have_the_tied_matrix_under_another_name(tmp_path, name, kept):
    model = published(name, tmp_path)
    file, prefix = tmp_path / "model.safetensors", "" if name == "t5" else "model."
    found = load_file(file)
    found["lm_head.weight" if kept == "lm_head" else f"{prefix}{kept}.weight"] = found.pop(f"{prefix}shared.weight")
    save_file(found, file, {"format": "pt"})
    rows, target = sequences((8,)), torch.stack(sequences((9,), seed=2))
    with torch.no_grad():
        expected = model(input_ids=rows[0][None], decoder_input_ids=target).logits
        assert relative(ours(tmp_path).eval()(source_of(rows, [1]), target), expected) < 1e-5


@pytest.mark.parametrize("name", ["bart-untied", "led", "t5-untied", "umt5"])
def test_every_tensor_of_a_file_is_used_and_every_parameter_comes_from_it(tmp_path, name):
    """Change one tensor at a time, and one parameter differs. No model uses the shared matrix of untied ones."""
    published(name, tmp_path)
    file = tmp_path / "model.safetensors"
    found, first, used = load_file(file), load(tmp_path).weights, set()
    for key, tensor in found.items():
        save_file(found | {key: tensor + 1.0}, file, {"format": "pt"})
        second = load(tmp_path).weights
        changed = {own for own in first if not torch.equal(first[own], second[own])}
        assert len(changed) == (0 if name in UNTIED and key.endswith("shared.weight") else 1), key
        used |= changed
    assert used >= {*ours(tmp_path).state_dict()} - {"embedding.bias", "output.bias"}


def test_parity_of_several_global_tokens(tmp_path):
    """PRIMERA: the first token and the marks between documents are global."""
    model = published("led", tmp_path)
    rows = sequences((100, 41))
    for row in rows:
        row[17::20] = 3
    ids, mask = padded(rows)
    everywhere = (ids == 3).long().index_fill(1, torch.tensor([0]), 1)
    with torch.no_grad():
        expected = model.get_encoder()(ids, attention_mask=mask, global_attention_mask=everywhere).last_hidden_state
        found = load(tmp_path)
        made = found.spec.backbone.model_copy(update={"global_ids": (3,)})
        spec = found.spec.model_copy(update={"backbone": made})
        own = fill(systems.build(spec), found.weights, "").eval()
        states = own.encode(source_of(rows, [1, 1])).tokens
    assert relative(states, torch.cat([expected[0, :100], expected[1, :41]])) < 1e-5


def test_what_is_exported_is_what_was_imported(theirs, tmp_path):
    from transformers import AutoModelForSeq2SeqLM

    folder, model = theirs
    first = load(folder, decoder="PF", encoder="G" + flat(model) if model.config.model_type != "led" else None)
    save(tmp_path, first.spec, with_new(first.spec, first.weights))
    second = load(tmp_path, encoder=first.spec.encoder, decoder="PF")
    assert second.spec == first.spec
    assert all(torch.equal(value, second.weights[name]) for name, value in first.weights.items())
    (ids,), target = sequences((33,)), torch.stack(sequences((9,), seed=2))
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    with torch.no_grad():
        found, expected = (one(input_ids=ids[None], decoder_input_ids=target).logits for one in (again, model))
    assert torch.equal(found, expected)


def test_trained_layers_that_transformers_lacks_are_not_exported(theirs, tmp_path):
    found = load(theirs[0], decoder="FP")
    weights = with_new(found.spec, found.weights)
    weights["decoder.1.cross.gate"] += 0.1
    with pytest.raises(UserError, match="no layer such as P, number 1 of the decoder"):
        save(tmp_path, found.spec, weights)
