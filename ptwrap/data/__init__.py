"""Data: sets, loaders, order and labels. Each way to make a `DataModule` is joined to it here, in one place."""
from ptwrap.data.arrays import ArrayData, arrays, digits
from ptwrap.data.datasets import SetData, datasets
from ptwrap.data.folders import folder
from ptwrap.data.images import ImageData
from ptwrap.data.labels import Labels, random_split, stratified_split
from ptwrap.data.lists import image_csv
from ptwrap.data.loader import InMemoryLoader, SampleLoader
from ptwrap.data.module import DataModule
from ptwrap.data.pictures import read_image
from ptwrap.data.sampler import BatchOrder
from ptwrap.data.samples import SeededSamples, Transformed, UnreadableSample
from ptwrap.data.sets import NamedData, named
from ptwrap.data.series import SeriesData, series
from ptwrap.data.tables import TableData, csv, frame
from ptwrap.data.text import TextData, text
from ptwrap.data.tokens import Vocab, pad_collate

__all__ = ["ArrayData", "BatchOrder", "DataModule", "ImageData", "InMemoryLoader", "Labels", "NamedData", "SampleLoader",
           "SeededSamples", "SeriesData", "SetData", "TableData", "TextData", "Transformed", "UnreadableSample", "Vocab",
           "pad_collate", "random_split", "read_image", "stratified_split"]

for _make in (arrays, csv, datasets, digits, folder, frame, image_csv, named, series, text):
    setattr(DataModule, _make.__name__, staticmethod(_make))
