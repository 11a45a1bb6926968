//! Links in Markdown files point at files that exist, and at headings that these have.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::tree::{File, Tree};

/// All complaints.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let pages: Vec<&File> = tree
        .files
        .iter()
        .filter(|file| file.path.ends_with(".md"))
        .collect();
    let anchors: BTreeMap<&str, BTreeSet<String>> = pages
        .iter()
        .map(|page| (page.path.as_str(), anchors(&page.text)))
        .collect();
    let mut wrong = Vec::new();
    for page in &pages {
        for (target, place) in targets(&page.text) {
            if let Some(complaint) = judge(tree, &anchors, &page.path, &target) {
                let line = page.text[..place.start].matches('\n').count() + 1;
                wrong.push(format!("{}:{line}: {complaint}", page.path));
            }
        }
    }
    wrong
}

/// What is wrong with a link, if anything is.
fn judge(
    tree: &Tree,
    anchors: &BTreeMap<&str, BTreeSet<String>>,
    from: &str,
    target: &str,
) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target
        .split_once('#')
        .map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let file = if path.is_empty() {
        from.to_owned()
    } else {
        match resolve(from, path) {
            Some(file) if file.is_empty() || tree.has(&file) => file,
            Some(file) => return Some(format!("there is no {file}")),
            None => return Some(format!("{path} is outside of the repository")),
        }
    };
    let (anchor, headings) = (anchor?, anchors.get(file.as_str())?);
    (!headings.contains(anchor)).then(|| format!("{file} has no heading #{anchor}"))
}

/// Markdown as GitHub and mdBook read it.
fn parse(text: &str) -> Parser<'_> {
    Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH)
}

/// Where the links and pictures of a text point to, and where they stand.
fn targets(text: &str) -> impl Iterator<Item = (String, Range<usize>)> {
    parse(text)
        .into_offset_iter()
        .filter_map(|(event, place)| match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some((dest_url.into_string(), place))
            }
            _ => None,
        })
}

/// The names of a text's headings in links. A heading that comes again has a number behind its name.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut heading: Option<String> = None;
    for event in parse(text) {
        match (event, &mut heading) {
            (Event::Start(Tag::Heading { .. }), _) => heading = Some(String::new()),
            (Event::Text(part) | Event::Code(part), Some(heading)) => heading.push_str(&part),
            (Event::End(TagEnd::Heading(_)), _) => {
                let name = slug(&heading.take().unwrap_or_default());
                let numbers = (1..).map(|number| format!("{name}-{number}"));
                let mut names = std::iter::once(name.clone()).chain(numbers);
                let free = names.find(|name| !anchors.contains(name));
                anchors.extend(free);
            }
            _ => {}
        }
    }
    anchors
}

/// A heading's name: letters, digits, `-` and `_` of it in lower case, with `-` for each space.
fn slug(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | ' '));
    kept.flat_map(char::to_lowercase)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// A link in `from`, as a path from the workspace's root. Nothing: it leads out of it.
fn resolve(from: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(text: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("docs/A.md", text),
            (
                "docs/B.md",
                "# One `two`, three\n\n## Again\n\n## Again\n\n```text\n# no heading\n```\n",
            ),
            ("README.md", "# NetVM\n\n[docs](docs/)\n"),
            ("docs/a.rs", ""),
        ]);
        check(&tree)
    }

    #[test]
    fn good_links_are_no_complaint() {
        let good = "# Here\n\n[b](B.md) [b](B.md#one-two-three) [b](./B.md#again) [b](B.md#again-1) [root](../README.md#netvm)\n\
                    [web](https://x.y/z#q) [mail](mailto:x@y.z) [here](#here) [code](a.rs#L3) ![picture](a.rs) [name]\n\n\
                    `[no](link.md)`\n\n```text\n[no](link.md)\n```\n\n[name]: B.md\n";
        assert_eq!(complaints(good), Vec::<String>::new());
    }

    #[test]
    fn dead_links_and_anchors_are_found() {
        for (link, says) in [
            ("[dead](../gone.rs)", "docs/A.md:3: there is no gone.rs"),
            (
                "[dead][name]\n\n[name]: C.md",
                "docs/A.md:3: there is no docs/C.md",
            ),
            ("![dead](gone.svg)", "docs/A.md:3: there is no docs/gone.svg"),
            (
                "[out](../../x)",
                "docs/A.md:3: ../../x is outside of the repository",
            ),
            ("[b](B.md#four)", "docs/A.md:3: docs/B.md has no heading #four"),
            (
                "[b](B.md#again-2)",
                "docs/A.md:3: docs/B.md has no heading #again-2",
            ),
            (
                "[b](B.md#no-heading)",
                "docs/A.md:3: docs/B.md has no heading #no-heading",
            ),
            ("[here](#there)", "docs/A.md:3: docs/A.md has no heading #there"),
        ] {
            assert_eq!(complaints(&format!("# Here\n\n{link}\n")), [says]);
        }
    }
}
