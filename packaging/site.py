"""A hook of mkdocs (mkdocs.yml): what lies outside docs is no page of the site, so links there become names of files."""

import posixpath
import re


def on_page_markdown(markdown, page, config, files):
    folder = posixpath.dirname(page.file.src_uri)

    def resolved(link):
        text, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", folder, target.partition("#")[0]))
        if path.startswith("docs/"):
            return link[0]
        name = f"`{path}`"
        return name if text.strip("`*") in (path, posixpath.basename(path)) else f"{text} ({name})"

    return re.sub(r"\[([^]]*)\]\((\.\.[^):\s]*)\)", resolved, markdown)
