"""The name a notebook's file stands for."""

from pathlib import Path

from labkit.lab.experiments import notebook_name


def test_a_leading_number_sorts_a_notebook_and_is_no_part_of_its_name():
    assert notebook_name(Path("00_start_here.ipynb")) == "start-here"
    assert notebook_name(Path("4.ipynb")) == "4"
    assert notebook_name(Path("70b_decode.ipynb")) == "70b-decode"
