"Fills in what pyproject.toml calls dynamic, from settings.ini."
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_namespace_packages, setup

ini = ConfigParser(delimiters=["="], interpolation=None)
ini.read(Path(__file__).parent / "settings.ini", encoding="utf-8")
cfg = ini["DEFAULT"]
statuses = {"2": "2 - Pre-Alpha", "3": "3 - Alpha", "4": "4 - Beta", "5": "5 - Production/Stable"}

setup(
    author=cfg["author"],
    keywords=cfg["keywords"].split(),
    classifiers=[
        f"Development Status :: {statuses[cfg['status']]}",
        f"Intended Audience :: {cfg['audience']}",
        f"Natural Language :: {cfg['language']}",
        "Programming Language :: Python :: 3 :: Only",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    packages=find_namespace_packages(include=[cfg["lib_path"], cfg["lib_path"] + ".*"], exclude=["*.__pycache__"]),
    package_data={cfg["lib_path"]: ["assets/*", "ui/*.js", "ui/*.css"]},
    install_requires=cfg["requirements"].split(),
    extras_require={k.removesuffix("_requirements"): v.split() for k, v in cfg.items() if k.endswith("_requirements")},
    entry_points={"nbdev": [f"{cfg['lib_path']} = {cfg['lib_path']}._modidx:d"]},
)
