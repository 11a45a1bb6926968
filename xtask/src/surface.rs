//! The public API of the crates that others build on, as a list in the repository: `docs/api/CRATE.txt`. A change of it is then a
//! change of that file, which a reviewer sees.
//!
//! The list is made from the crate's source, with all its features, after its macros are expanded. It has every item that a user can name, without
//! bodies, and which traits its types have. What the documentation hides is not part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use netvm_harness::cargo::{cargo, root};
use syn::{
    Attribute, Fields, ImplItem, Item, ItemImpl, ItemMod, Type, UseTree, Visibility, parse_quote,
    visit_mut::VisitMut,
};

/// The crates whose API is listed.
pub(crate) const LISTED: [&str; 5] = [
    "netvm",
    "netvm-calls",
    "netvm-process",
    "netvm-net",
    "netvm-lease",
];

/// What is published: the library and what stands above it, the software card, and all that they need of NetVM.
pub(crate) const PUBLISHED: [&str; 12] = [
    "netvm-abi",
    "netvm-memory",
    "netvm-nic",
    "netvm-platform",
    "netvm-soft",
    "netvm-host",
    "netvm-host-platform",
    "netvm",
    "netvm-calls",
    "netvm-process",
    "netvm-net",
    "netvm-lease",
];

/// How `cargo xtask api` is called.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write the lists instead of comparing them.
    #[arg(long)]
    write: bool,
}

/// `cargo xtask api`.
pub(crate) fn api(options: &Options) -> Result<bool> {
    let mut same = true;
    for package in LISTED {
        let (path, now) = (file_of(package), list(package)?);
        if options.write {
            std::fs::write(&path, &now).with_context(|| format!("writing {}", path.display()))?;
            continue;
        }
        for change in changes(package, &now)? {
            println!("{change}");
            same = false;
        }
    }
    if !same {
        println!(
            "`cargo xtask api --write` writes the lists anew; say in the changelog what has changed for users"
        );
    }
    Ok(same)
}

fn file_of(package: &str) -> PathBuf {
    root().join("docs/api").join(format!("{package}.txt"))
}

/// What differs between the list in the repository and the crate as it is.
pub(crate) fn changes(package: &str, now: &str) -> Result<Vec<String>> {
    let path = file_of(package);
    let before = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(compare(&before, now)
        .into_iter()
        .map(|change| format!("{package}: {change}"))
        .collect())
}

/// Lines that are gone, then lines that are new.
fn compare(before: &str, now: &str) -> Vec<String> {
    let lines = |text: &str| {
        let mut count = BTreeMap::<String, i32>::new();
        for line in text.lines() {
            *count.entry(line.to_owned()).or_default() += 1;
        }
        count
    };
    let (before, now) = (lines(before), lines(now));
    let missing = |here: &BTreeMap<String, i32>, there: &BTreeMap<String, i32>, sign: char| {
        let fewer = |(line, count): (&String, &i32)| {
            let more = there.get(line).copied().unwrap_or(0) < *count;
            more.then(|| format!("{sign} {}", line.trim()))
        };
        here.iter().filter_map(fewer).collect::<Vec<_>>()
    };
    let mut changes = missing(&before, &now, '-');
    changes.extend(missing(&now, &before, '+'));
    changes
}

/// The API of a crate as it is.
pub(crate) fn list(package: &str) -> Result<String> {
    let mut expand = cargo(&["rustc", "--locked", "--package", package, "--lib", "--quiet"]);
    expand.arg("--all-features");
    // Of the stable compiler, which has the option for its own use.
    expand
        .env("RUSTC_BOOTSTRAP", "1")
        .args(["--", "-Zunpretty=expanded"]);
    let output = expand.output().context("running cargo")?;
    if !output.status.success() {
        bail!("expanding {package}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let source = String::from_utf8(output.stdout).context("the expanded source is no text")?;
    list_of(&source, &package.replace('-', "_"))
}

/// The API that a crate's expanded source has.
fn list_of(source: &str, name: &str) -> Result<String> {
    // What `pin!` becomes is no stable syntax. It stands in bodies alone, which are not looked at.
    let source = source.replace("super let ", "let ");
    let file = syn::parse_file(&source).map_err(|error| {
        let line = error.span().start().line;
        anyhow::anyhow!("the expanded source of {name} cannot be parsed: line {line}: {error}")
    })?;
    let mut surface = Surface::new(&file.items);
    surface.module(&[], name);
    let mut items = surface.found;
    let types: BTreeSet<String> = surface.types;
    collect_impls(&file.items, &types, &mut items);
    let mut entries: Vec<String> = items
        .into_iter()
        .map(|item| {
            let file = syn::File {
                shebang: None,
                attrs: Vec::new(),
                items: vec![item],
            };
            prettyplease::unparse(&file)
        })
        .collect();
    entries.sort_by_key(|text| order(text));
    entries.dedup();
    let head = format!("// The public API of `{name}`, by `cargo xtask api --write`. Not compiled.\n\n");
    Ok(head + &entries.join("\n"))
}

/// Items go by what they are about: a type, then what it can do.
fn order(text: &str) -> (String, bool, String) {
    let first = text
        .lines()
        .find(|line| !line.starts_with('#'))
        .unwrap_or_default();
    let is_impl = first.starts_with("impl") || first.starts_with("unsafe impl");
    let subject = if is_impl {
        first.rsplit(" for ").next().unwrap_or(first)
    } else {
        first
    };
    let words: Vec<&str> = subject
        .split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .filter(|word| {
            ![
                "", "pub", "impl", "struct", "enum", "fn", "trait", "const", "unsafe", "type", "use", "a",
            ]
            .contains(word)
        })
        .collect();
    (
        words.first().copied().unwrap_or_default().to_owned(),
        is_impl,
        text.to_owned(),
    )
}

/// What a user can name.
struct Surface<'a> {
    root: &'a [Item],
    found: Vec<Item>,
    /// Names of the types among it.
    types: BTreeSet<String>,
}

impl<'a> Surface<'a> {
    const fn new(root: &'a [Item]) -> Self {
        Self {
            root,
            found: Vec::new(),
            types: BTreeSet::new(),
        }
    }

    /// The items of a module of the crate.
    fn items(&self, path: &[String]) -> Option<&'a [Item]> {
        let mut items = self.root;
        for name in path {
            let is_it = |item: &&Item| matches!(item, Item::Mod(module) if module.ident == name);
            let Some(Item::Mod(ItemMod {
                content: Some((_, inner)),
                ..
            })) = items.iter().find(is_it)
            else {
                return None;
            };
            items = inner;
        }
        Some(items)
    }

    /// Takes in a public module, which users know by this path.
    fn module(&mut self, path: &[String], public: &str) {
        for item in self.items(path).unwrap_or_default() {
            if hidden(attributes(item)) || !is_public(item) {
                continue;
            }
            match item {
                Item::Mod(module) => {
                    let mut inner = path.to_vec();
                    inner.push(module.ident.to_string());
                    self.module(&inner, &format!("{public}::{}", module.ident));
                }
                Item::Use(import) => self.import(path, &[], &import.tree, public),
                item => self.take(item, public),
            }
        }
    }

    /// Takes in what a `pub use` names.
    fn import(&mut self, path: &[String], prefix: &[String], tree: &UseTree, public: &str) {
        match tree {
            UseTree::Path(step) => {
                let mut prefix = prefix.to_vec();
                prefix.push(step.ident.to_string());
                self.import(path, &prefix, &step.tree, public);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(path, prefix, tree, public);
                }
            }
            UseTree::Name(name) => self.named(path, prefix, &name.ident.to_string(), public),
            UseTree::Rename(name) => self.foreign(prefix, &format!("{} as {}", name.ident, name.rename)),
            UseTree::Glob(_) => self.foreign(prefix, "*"),
        }
    }

    fn named(&mut self, path: &[String], prefix: &[String], name: &str, public: &str) {
        let mut from = path.to_vec();
        for step in prefix {
            match step.as_str() {
                "crate" => from.clear(),
                "super" => drop(from.pop()),
                "self" => {}
                step => from.push(step.to_owned()),
            }
        }
        let Some(items) = self.items(&from) else {
            return self.foreign(prefix, name);
        };
        let mut of_it = items
            .iter()
            .filter(|item| identifier(item).as_deref() == Some(name))
            .peekable();
        if of_it.peek().is_some() {
            of_it.for_each(|item| self.take(item, public));
            return;
        }
        // It is named there by another `use`.
        for item in items {
            if let Item::Use(import) = item
                && let Some(prefix) = leads_to(&import.tree, name)
            {
                return self.named(&from, &prefix, name, public);
            }
        }
        self.foreign(prefix, name);
    }

    /// What is another crate's.
    fn foreign(&mut self, prefix: &[String], name: &str) {
        let text = format!("pub use {}::{name};", prefix.join("::"));
        if let Ok(item) = syn::parse_str::<Item>(&text) {
            self.found.push(item);
        }
    }

    fn take(&mut self, item: &Item, public: &str) {
        let mut item = item.clone();
        Bare.visit_item_mut(&mut item);
        if let Some(name) = identifier(&item)
            && matches!(
                item,
                Item::Struct(_) | Item::Enum(_) | Item::Trait(_) | Item::Union(_) | Item::Type(_)
            )
        {
            self.types.insert(name);
        }
        // An item at the root needs no more than its name; one of a module says which.
        if let Some((_, module)) = public.split_once("::") {
            let module = syn::Ident::new(&module.replace("::", "_"), proc_macro2::Span::call_site());
            self.found.push(parse_quote! { pub mod #module { #item } });
        } else {
            self.found.push(item);
        }
    }
}

/// The steps of a `use` that lead to this name.
fn leads_to(tree: &UseTree, name: &str) -> Option<Vec<String>> {
    match tree {
        UseTree::Path(step) => {
            let mut rest = leads_to(&step.tree, name)?;
            rest.insert(0, step.ident.to_string());
            Some(rest)
        }
        UseTree::Group(group) => group.items.iter().find_map(|tree| leads_to(tree, name)),
        UseTree::Name(last) if last.ident == name => Some(Vec::new()),
        _ => None,
    }
}

/// What the public types can do, wherever in the crate that stands.
fn collect_impls(items: &[Item], types: &BTreeSet<String>, found: &mut Vec<Item>) {
    for item in items {
        match item {
            Item::Mod(ItemMod {
                content: Some((_, inner)),
                attrs,
                ..
            }) if !hidden(attrs) => collect_impls(inner, types, found),
            Item::Impl(block)
                if !hidden(&block.attrs)
                    && subject(&block.self_ty).is_some_and(|name| types.contains(&name)) =>
            {
                found.extend(outside(block).map(Item::Impl));
            }
            _ => {}
        }
    }
}

/// The name of the type that a block is about.
fn subject(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        Type::Reference(reference) => subject(&reference.elem),
        _ => None,
    }
}

/// What a user sees of a block: functions that are public, or that it has the trait.
fn outside(block: &ItemImpl) -> Option<ItemImpl> {
    let mut block = block.clone();
    if let Some((_, of, _)) = &block.trait_ {
        let last = of.segments.last()?.ident.to_string();
        // What `derive` writes for itself.
        if last.starts_with("Structural") || last.starts_with("Try") && last.ends_with("Derive") {
            return None;
        }
        block.items.clear();
        Bare.visit_item_impl_mut(&mut block);
        return Some(block);
    }
    block.items.retain(|item| match item {
        ImplItem::Fn(function) => matches!(function.vis, Visibility::Public(_)) && !hidden(&function.attrs),
        ImplItem::Const(value) => matches!(value.vis, Visibility::Public(_)) && !hidden(&value.attrs),
        _ => false,
    });
    Bare.visit_item_impl_mut(&mut block);
    (!block.items.is_empty()).then_some(block)
}

fn hidden(attributes: &[Attribute]) -> bool {
    let says_so = |attribute: &Attribute| {
        attribute.path().is_ident("doc")
            && attribute
                .parse_args::<syn::Ident>()
                .is_ok_and(|argument| argument == "hidden")
    };
    attributes.iter().any(says_so)
}

/// Takes away what is no user's business: bodies, documentation, private fields.
struct Bare;

impl VisitMut for Bare {
    fn visit_attributes_mut(&mut self, attributes: &mut Vec<Attribute>) {
        let kept = ["non_exhaustive", "must_use", "deprecated", "repr"];
        attributes.retain(|attribute| kept.iter().any(|name| attribute.path().is_ident(name)));
        for attribute in attributes {
            // What it says is documentation.
            if attribute.path().is_ident("must_use") {
                attribute.meta = parse_quote!(must_use);
            }
        }
    }

    fn visit_block_mut(&mut self, block: &mut syn::Block) {
        block.stmts.clear();
    }

    // Whether a function changes what it was given is its own business.
    fn visit_receiver_mut(&mut self, receiver: &mut syn::Receiver) {
        if receiver.reference.is_none() {
            receiver.mutability = None;
        }
    }

    fn visit_pat_ident_mut(&mut self, argument: &mut syn::PatIdent) {
        argument.mutability = None;
    }

    // What `derive` writes has whole paths.
    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        if path.leading_colon.is_some()
            && let Some(last) = path.segments.last().cloned()
        {
            path.leading_colon = None;
            path.segments = std::iter::once(last).collect();
        }
        syn::visit_mut::visit_path_mut(self, path);
    }

    fn visit_item_const_mut(&mut self, item: &mut syn::ItemConst) {
        self.visit_attributes_mut(&mut item.attrs);
    }

    fn visit_fields_mut(&mut self, fields: &mut Fields) {
        if let Fields::Named(named) = fields {
            let all = std::mem::take(&mut named.named);
            named.named = all
                .into_iter()
                .filter(|field| matches!(field.vis, Visibility::Public(_)))
                .collect();
        }
        syn::visit_mut::visit_fields_mut(self, fields);
    }

    fn visit_variant_mut(&mut self, variant: &mut syn::Variant) {
        // Fields of a variant are public without a word.
        for field in &mut variant.fields {
            self.visit_attributes_mut(&mut field.attrs);
        }
        self.visit_attributes_mut(&mut variant.attrs);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_public(item: &Item) -> bool {
    let visibility = match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Mod(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Union(item) => &item.vis,
        Item::Use(item) => &item.vis,
        _ => return false,
    };
    matches!(visibility, Visibility::Public(_))
}

fn identifier(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
        mod inner {
            /// Words.
            #[must_use = \"why\"]
            pub struct Shown { pub open: u32, shut: u8 }
            impl Shown {
                pub fn call(&self, mut of: u32) -> u32 { of += self.open; of }
                #[doc(hidden)] pub fn aside(&self) {}
                fn own(&self) {}
            }
            impl ::core::clone::Clone for Shown { fn clone(&self) -> Self { loop {} } }
            pub struct Kept;
            impl Kept { pub fn call(&self) {} }
            pub enum Kind { One { of: u8 }, Two(u16) }
        }
        pub mod apart { pub use super::inner::Kind; pub fn free() -> u8 { 7 } }
        #[doc(hidden)] pub mod aside { pub fn internal() {} }
        pub use inner::Shown;
        pub use other::Foreign;
    ";

    #[test]
    fn the_list_has_what_a_user_can_name_and_nothing_else() {
        let list = list_of(SOURCE, "name").unwrap();
        for there in [
            "#[must_use]\npub struct Shown",
            "pub open: u32",
            "pub fn call(&self, of: u32) -> u32 {}",
            "impl Clone for Shown {}",
            "pub use other::Foreign;",
            "pub mod apart",
            "pub fn free() -> u8 {}",
            "One { of: u8 }",
            "Two(u16)",
        ] {
            assert!(list.contains(there), "{there} is missing:\n{list}");
        }
        for absent in [
            "shut", "aside", "own(&", "Kept", "Words", "internal", "why", "loop",
        ] {
            assert!(!list.contains(absent), "{absent} is there:\n{list}");
        }
    }

    #[test]
    fn a_change_is_named() {
        let before = list_of(SOURCE, "name").unwrap();
        let now = list_of(&SOURCE.replace("mut of: u32", "of: u64"), "name").unwrap();
        assert_eq!(
            compare(&before, &now),
            [
                "- pub fn call(&self, of: u32) -> u32 {}",
                "+ pub fn call(&self, of: u64) -> u32 {}"
            ]
        );
        assert!(compare(&before, &before).is_empty());
    }
}
