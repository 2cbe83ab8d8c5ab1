"""The pictures of the page in the documentation."""


def take(visit, folder):
    pass
