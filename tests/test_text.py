"Texts: vocabulary, padding, sources, and names to languages with the person names of Faker."
import importlib
import importlib.util
import time
from collections import Counter

import numpy as np
import pytest
import torch

from ptwrap.core import UnknownName
from ptwrap.data import DataModule, TextData, Vocab, pad_collate
from ptwrap.data.samples import UnreadableSample
from ptwrap.learner import Learner
from ptwrap.predict import predict

LANGUAGES = dict(  # 14 languages in Latin letters, and the locales whose names count for each
    de="de_DE de_AT de_CH", en="en_US en_GB en_NZ", es="es_ES es_MX es_CO es_AR es_CL", fi="fi_FI", fr="fr_FR fr_BE",
    ga="ga_IE", hr="hr_HR", it="it_IT", nl="nl_NL nl_BE", pt="pt_PT pt_BR", ro="ro_RO", sk="sk_SK", sv="sv_SE",
    tr="tr_TR")


def names_of(locale: str) -> set[str]:
    "First and last names of a locale."
    provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
    lists = [value for cls in provider.__mro__ for key, value in vars(cls).items()
             if key.startswith(("first_names", "last_names"))]
    return {n for part in lists if isinstance(part, (tuple, list, dict)) for n in part if isinstance(n, str)}


def names_and_languages() -> tuple[list[str], list[str]]:
    "Names that are seen in one language only."
    by_language = {lang: set().union(*map(names_of, locales.split())) for lang, locales in LANGUAGES.items()}
    seen = Counter(name for names in by_language.values() for name in names)
    rows = sorted((name, lang) for lang, names in by_language.items() for name in names if seen[name] == 1)
    return [name for name, _ in rows], [lang for _, lang in rows]


def test_names_to_languages():
    pytest.importorskip("faker", reason="names need faker: pip install 'ptwrap[data]'")
    names, langs = names_and_languages()
    counts = Counter(langs)
    assert 17_000 < len(names) < 22_000 and len(counts) == 14, (len(names), counts)
    assert max(counts.values()) / len(names) < 0.2 and min(counts.values()) > 100, counts
    data = DataModule.text(names, langs, by="char", batch_size=64, seed=0)
    assert data.classes == sorted(LANGUAGES) and 60 < data.vocab_size < 250
    learn = Learner(dict(name="text_lstm", hidden=96), data, metrics="accuracy", lr=1e-2, sched="one_cycle", seed=0)
    start = time.perf_counter()
    learn.fit(3)
    print(f"{len(names):,} names, {data.vocab_size} characters, accuracy "
          f"{learn.history.epochs[-1]['valid_accuracy']:.3f}, {time.perf_counter() - start:.1f} s")
    assert learn.history.epochs[-1]["valid_accuracy"] >= 0.68
    test = ["Schwarzenberger", "O'Shaughnessy", "Yılmazoğlu"]
    assert predict(learn, test, decode=True)[0] == "de" and predict(learn, "Schwarzenberger").shape == (1, 14)
    padded = torch.cat([data.encode(test[:1]), torch.zeros(1, 5, dtype=torch.int64)], 1)
    assert torch.allclose(predict(learn, padded), predict(learn, test[:1]), atol=1e-5)


TEXTS = ["a good film", "good, really good", "bad", "a bad film", "so bad", "good", "", "the film is good"]
LABELS = ["pos", "pos", "neg", "neg", "neg", "pos", "neg", "pos"]


@pytest.mark.parametrize("by,expected", [
    ("word", ["good", "film", "bad"]), ("char", [" ", "o", "a"]), (str.split, ["bad", "good", "film"])])
def test_vocabulary_by_frequency_then_alphabet(by, expected):
    data = DataModule.text(TEXTS, LABELS, by=by, split=(range(8), []), batch_size=8)
    counts = Counter(token for text in TEXTS for token in data.vocab.split(text))
    assert data.vocab.tokens[2:] == sorted(counts, key=lambda t: (-counts[t], t))
    assert set(expected) <= set(data.vocab.tokens[2:8])
    back = data.vocab.decode(data.encode(["good film"])[0])
    assert back == "good film"
    assert data.encode(["", "bad"])[0, 0] == 1 and data.train_ds[6][0].tolist() == [1]


def test_the_vocabulary_comes_from_training_alone():
    texts = [f"word{i}" for i in range(100)]
    data = DataModule.text(texts, [i % 2 for i in range(100)], seed=3)
    assert data.vocab_size == 82
    assert {x.tolist()[0] for x, _ in data.valid_ds} == {1}
    assert "unknown     100.0% of the validation tokens" in repr(data.summary())
    other = DataModule.text(texts, [i % 2 for i in range(100)])
    other.take_seed(4)
    assert other.vocab.tokens != data.vocab.tokens and other.vocab_size == 82


def test_batches_are_padded_to_their_longest_text_and_follow_the_seed():
    lengths = [1, 9, 2, 3, 8, 2] * 10
    data = DataModule.text(["x " * n for n in lengths], list(map(float, lengths)), batch_size=5, seed=0, valid_share=0)
    for x, y in data.train_dl:
        assert x.shape == (5, int(y.max())) and ((x != 0).sum(1) == y[:, 0]).all()
    seen = [y.tolist() for _, y in data.train_dl]
    for workers in (0, 2):
        again = DataModule.text(["x " * n for n in lengths], list(map(float, lengths)), batch_size=5, seed=0,
                                valid_share=0, num_workers=workers)
        list(again.train_dl)
        batches = list(again.train_dl)
        assert [y.tolist() for _, y in batches] == seen and all(x.shape[1] == y.max() for x, y in batches)
    collated = DataModule.text(["a", "b c"] * 4, [0, 1] * 4, collate_fn=pad_collate, batch_size=4, num_workers=0)
    assert next(iter(collated.train_dl))[0].shape[0] == 4
    assert data.n_outputs == 1 and not data.is_classes


def test_max_len_cuts_and_tells():
    data = DataModule.text(["a b c d e", "a b", "a"] * 4, [0, 1, 0] * 4, max_len=2, valid_share=0.25, seed=0)
    assert data.sample_shape == (2,) and max(x.shape[1] for x, _ in data.train_dl) == 2
    assert "4 of all 12 are cut at max_len=2" in repr(data.summary())
    assert data.encode("a b c").shape == (1, 2)


def test_weights_targets_and_labels():
    data = DataModule.text(["a", "b", "b", "b"] * 5, ["x", "y", "y", None] * 5, weighted=False, valid_share=0)
    assert data.class_counts.tolist() == [5, 10] and data.y.tolist()[:4] == [0, 1, 1, -100]
    given = DataModule.text(["a"] * 4, [1, 2, 5, 5], classes=range(1, 6), valid_share=0)
    assert given.num_classes == 5 and given.y.tolist() == [0, 1, 4, 4]
    several = DataModule.text(["a", "b"], [[1.0, 0.0], [0.0, 1.0]], valid_share=0)
    assert several.n_outputs == 2 and several.y.shape == (2, 2)
    kept = DataModule.text(["b b", "c"], [0, 1], vocab=data.vocab, valid_share=0)
    assert kept.vocab is data.vocab and kept.one_batch()[0].max() <= 3


def test_series_and_arrays_as_texts():
    pd = pytest.importorskip("pandas")
    data = DataModule.text(pd.Series(TEXTS), pd.Series(LABELS), seed=0)
    plain = DataModule.text(np.array(TEXTS), np.array(LABELS), seed=0)
    assert data.vocab.tokens == plain.vocab.tokens and data.classes == ["neg", "pos"]
    assert data.encode(pd.Series(["good"])).tolist() == plain.encode(["good"]).tolist()


def test_csv_and_folder(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("text,label,score\n" + "".join(f'"{t}",{y},{i}.5\n' for i, (t, y) in enumerate(zip(TEXTS, LABELS))))
    data = DataModule.text(path, seed=0)
    assert data.name == "reviews" and data.classes == ["neg", "pos"] and len(data.texts) == 8
    assert data.made_by == ("DataModule.text", dict(texts=str(path), seed=0))
    scores = DataModule.text(path, label_col="score", seed=0)
    assert scores.y[:2].tolist() == [[0.5], [1.5]] and scores.made_by[1]["label_col"] == "score"
    for part in ("train", "valid", "test"):
        for i, (t, y) in enumerate(zip(TEXTS, LABELS)):
            (tmp_path / part / y).mkdir(parents=True, exist_ok=True)
            (tmp_path / part / y / f"{i}.txt").write_text(t)
    data = DataModule.text(tmp_path, batch_size=4)
    assert [len(dl.dataset) for dl in (data.train_dl, data.valid_dl, data.test_dl)] == [8, 8, 8]
    assert len(DataModule.text(tmp_path / "train", seed=0).valid_dl.dataset) == 2
    (tmp_path / "train" / "neg" / "9.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UnreadableSample, match="neg/9.txt .text 4.: .*save it as UTF-8"):
        DataModule.text(tmp_path)
    with pytest.warns(UserWarning, match="left out: .*9.txt"):
        assert len(DataModule.text(tmp_path, on_bad="skip").train_dl.dataset) == 8


def test_pad_collate():
    x, y = pad_collate([(torch.ones(2, 3), 1), (torch.ones(5, 3), 0)])
    assert x.shape == (2, 5, 3) and x.dtype == torch.float32 and x[0].sum() == 6 and y.tolist() == [1, 0]
    _, tags = pad_collate([(torch.ones(1), torch.tensor([0.5])), (torch.ones(2), torch.tensor([1.0, 2.0]))])
    assert tags[0].isnan().tolist() == [False, True]
    rows = [(torch.ones(n), n % 2) for n in range(1, 9)]
    data = DataModule(rows, batch_size=4, collate_fn=pad_collate, num_workers=0)
    assert {x.shape[0] for x, _ in data.train_dl} == {4}


def test_lengths_in_words():
    same = DataModule.text(["a b c d"] * 20, ["x", "y"] * 10)
    assert same.rows()["input"] == "texts of 4 tokens" and same.rows()["target"].endswith("; 8 training samples each")
    other = DataModule.text(["a b", "a b c"] * 10, ["x", "y"] * 10)
    assert other.rows()["input"] == "texts of 2 to 3 tokens, 2 in the middle"


WRONG = [
    (lambda: DataModule.text(TEXTS), TypeError, "text needs a target for each text"),
    (lambda: DataModule.text(TEXTS, LABELS[:3]), ValueError, "there are 8 texts and 3 targets"),
    (lambda: DataModule.text(TEXTS, LABELS, by="words"), UnknownName, "by='words' (or give a function text -> tokens); "
                                                                      "did you mean 'word'?"),
    (lambda: DataModule.text(TEXTS, LABELS, by=3), TypeError, "by is a int; give 'word', 'char' or a function"),
    (lambda: DataModule.text(TEXTS, LABELS, by=str.lower), TypeError, "it must return a list of texts"),
    (lambda: DataModule.text(TEXTS, LABELS, max_len=0), ValueError, "max_len=0: give a whole number of tokens"),
    (lambda: DataModule.text(TEXTS, LABELS, max_vocab=2), ValueError, "padding and unknown take two"),
    (lambda: DataModule.text(TEXTS, LABELS, valid_share=2), ValueError, "valid_share=2: give a share"),
    (lambda: DataModule.text(TEXTS, LABELS, max_length=3), TypeError, "did you mean 'max_len'?"),
    (lambda: DataModule.text([1, 2], [0, 1]), TypeError, "texts[0] is 1 (int), no text"),
    (lambda: DataModule.text(np.array([["a", "b"]]), [0]), TypeError, "give a list or one column of texts"),
    (lambda: DataModule.text([], []), ValueError, "there are no texts"),
    (lambda: DataModule.text(TEXTS, range(8)), ValueError, "for regression give floats"),
    (lambda: DataModule.text(TEXTS, [1.0, "a", *range(6)]), TypeError, "y is partly numbers and partly something else"),
    (lambda: DataModule.text(TEXTS, LABELS, classes=["pos"]), ValueError, "'neg' is none of the 1 training classes"),
    (lambda: DataModule.text(TEXTS, LABELS, min_count=99).vocab, ValueError, "no token occurs 99 times"),
    (lambda: DataModule.text("reviews.csv"), FileNotFoundError, "'reviews.csv' is no file and no folder"),
    (lambda: DataModule.text("reviews.csv", LABELS), TypeError, "the targets come from the file"),
    (lambda: TextData(TEXTS, LABELS).vocab and Vocab.of([""]), ValueError, "no token occurs 1 times in the 0 tokens"),
    (lambda: pad_collate([torch.ones(2, 3), torch.ones(3, 2)]), ValueError,
     "(2, 3) and (3, 2) differ in more than length"),
]


@pytest.mark.parametrize("make,kind,text", WRONG, ids=[text[:40] for _, _, text in WRONG])
def test_wrong_inputs(make, kind, text):
    with pytest.raises(kind) as info:
        make()
    assert text in str(info.value)


def test_wrong_columns_and_empty_folder(tmp_path):
    (tmp_path / "a.csv").write_text("texts,label\na,1\n")
    with pytest.raises(UnknownName, match="a.csv has no column 'text'; did you mean 'texts'?.*its columns are 'texts'"):
        DataModule.text(tmp_path / "a.csv")
    with pytest.raises(FileNotFoundError, match=r"holds no <class>/\*.txt; it has a.csv"):
        DataModule.text(tmp_path)
