"""Outputs that pages show are written anew from what is printed."""

from scripts.tools import shown

PAGE = """# A page

```bash
molflt predict a b
```

```text
C=O 1.22 Å, dipole 1.5 D
barrier 0.25 eV, the other side +0.10 eV, −3.0
never {printed} 1
```

```text
of no command 1
```
"""


def test_numbers_are_renewed_with_their_digits():
    printed = ["C=O 9 Å", "C=O 1.2471 Å, dipole 11.26 D", "barrier 0.31 eV, the other side -0.055 eV, −2.96"]
    new, lost = shown.page(PAGE, {3: printed})
    assert new.splitlines()[7:10] == [
        "C=O 1.25 Å, dipole 11.3 D",
        "barrier 0.31 eV, the other side -0.06 eV, −3.0",
        "never {printed} 1",
    ]
    assert lost == ["never {printed} 1"]
    assert new.splitlines()[10:] == PAGE.splitlines()[10:]
    # In order: a line printed before the one that was found is not looked at again.
    assert shown.page(PAGE, {3: printed[::-1]})[1] == ["barrier 0.25 eV, the other side +0.10 eV, −3.0"]
