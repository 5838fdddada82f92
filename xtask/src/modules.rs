//! A test that the files of a crate depend on each other in one direction.
//!
//! A file depends on the files whose items it imports, or names by a path.
//! Items that a file takes from the files above it (`mod.rs` of its directory, `lib.rs`) do not count, and tests do not count
//! either.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, ItemMod, ItemUse, UseTree, Visibility};

use crate::ci::workspace;

/// Modules that hold the state of all other modules of their crate, which receive it as an argument.
const STATES: [(&str, &str); 1] = [("monitor", "state")];

/// Names from the root of a crate to a module or an item.
type Names = Vec<String>;

/// The modules that each module depends on.
type Graph = BTreeMap<Names, BTreeSet<Names>>;

/// The modules of a file, and the paths that it names.
#[derive(Default)]
struct File {
    /// Its module, and the modules inside of it that are being visited.
    module: Names,
    /// Items that it exports under a name, and where it takes them from, from the root of the crate.
    exported: BTreeMap<String, Names>,
    /// Paths that it names, from the root of the crate.
    named: Vec<Names>,
    /// Its modules in other files that are tests.
    tests: BTreeSet<String>,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .meta
                .require_list()
                .is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

impl File {
    /// `path` from the root of the crate. A path of another crate becomes one below the module, where no file has it.
    fn absolute(&self, path: &[String]) -> Names {
        let mut names = match path[0].as_str() {
            "crate" => Names::new(),
            "self" => self.module.clone(),
            "super" => self.module[..self.module.len().saturating_sub(1)].to_vec(),
            _ => return [&self.module[..], path].concat(),
        };
        for name in &path[1..] {
            if name == "super" {
                names.pop();
            } else {
                names.push(name.clone());
            }
        }
        names
    }

    /// Takes what `tree` imports below the path `before`, and exports it where `is_export`.
    fn import(&mut self, tree: &UseTree, before: &mut Names, is_export: bool) {
        let (name, alias) = match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before, is_export);
                before.pop();
                return;
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, before, is_export);
                }
                return;
            }
            UseTree::Name(name) => (name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(name) => (name.ident.to_string(), name.rename.to_string()),
            _ => (String::from("self"), String::new()),
        };
        let mut path = before.clone();
        if name != "self" || path.is_empty() {
            path.push(name);
        }
        let absolute = self.absolute(&path);
        if is_export {
            self.exported.insert(alias, absolute.clone());
        }
        self.named.push(absolute);
    }
}

impl<'ast> Visit<'ast> for File {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let name = item.ident.to_string();
        if is_test(&item.attrs) {
            self.tests.insert(name);
            return;
        }
        self.module.push(name);
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if !is_test(&item.attrs) {
            let is_export = !matches!(item.vis, Visibility::Inherited);
            self.import(&item.tree, &mut Names::new(), is_export);
        }
    }

    /// `#[serde(with = "PATH")]` names a module in a string.
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if attribute.path().is_ident("serde") {
            // Arguments of another form name no module.
            let _ = attribute.parse_nested_meta(|meta| {
                if !meta.input.peek(syn::Token![=]) {
                    return Ok(());
                }
                let value: syn::LitStr = meta.value()?.parse()?;
                if meta.path.is_ident("with") {
                    self.visit_path(&value.parse()?);
                }
                Ok(())
            });
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Names = (path.segments.iter().map(|it| it.ident.to_string())).collect();
        self.named.push(self.absolute(&names));
        visit::visit_path(self, path);
    }
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The files of the crate with the sources `src`, by module.
fn files_of(src: &Path) -> BTreeMap<Names, File> {
    let mut paths = Vec::new();
    rust_files(src, &mut paths);
    let mut files = BTreeMap::new();
    for path in paths {
        let relative = path.strip_prefix(src).unwrap().with_extension("");
        let mut module: Names = relative
            .iter()
            .map(|part| part.to_str().unwrap().to_owned())
            .collect();
        if matches!(
            module.last().map(String::as_str),
            Some("mod" | "lib" | "main")
        ) {
            module.pop();
        }
        let mut file = File {
            module: module.clone(),
            ..File::default()
        };
        file.visit_file(&syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap());
        files.insert(module, file);
    }
    let mut tests = Vec::new();
    for (module, file) in &files {
        tests.extend(
            file.tests
                .iter()
                .map(|name| [&module[..], std::slice::from_ref(name)].concat()),
        );
    }
    files.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    files
}

/// The module to which `path` leads, through the exports of the modules on the way.
fn defining<'f>(files: &'f BTreeMap<Names, File>, path: &[String]) -> Option<&'f Names> {
    let is_file = |len: &usize| files.contains_key(&path[..*len]);
    let known = (0..=path.len()).rev().find(is_file)?;
    let (module, file) = files.get_key_value(&path[..known])?;
    match path.get(known).and_then(|item| file.exported.get(item)) {
        Some(origin) if origin != path => defining(files, origin).or(Some(module)),
        _ => Some(module),
    }
}

fn dependencies(files: &BTreeMap<Names, File>) -> Graph {
    let mut graph = Graph::new();
    for (module, file) in files {
        let on = file.named.iter().filter_map(|path| defining(files, path));
        let on = on.filter(|other| !module.starts_with(other)).cloned();
        graph.insert(module.clone(), on.collect());
    }
    graph
}

/// Removes modules from `graph` that depend on no module in it, or on which none depends, until only cycles and the modules
/// between them are left.
fn reduce(graph: &mut Graph) {
    loop {
        let left: BTreeSet<_> = graph.keys().cloned().collect();
        for on in graph.values_mut() {
            on.retain(|module| left.contains(module));
        }
        let used: BTreeSet<_> = graph.values().flatten().cloned().collect();
        graph.retain(|module, on| !on.is_empty() && used.contains(module));
        if graph.len() == left.len() {
            return;
        }
    }
}

/// The modules of the crate in `directory` that depend on each other.
fn cycles(directory: &str) -> Graph {
    let mut graph = dependencies(&files_of(&workspace().join(directory).join("src")));
    graph.retain(|module, _| !STATES.contains(&(directory, &module.join("::"))));
    reduce(&mut graph);
    graph
}

#[test]
fn files_depend_on_each_other_in_one_direction() {
    let crates = fs::read_dir(workspace().join("crates")).unwrap();
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut directories: Vec<String> = crates
        .map(|entry| format!("crates/{}", name(entry).to_str().unwrap()))
        .collect();
    directories.extend(
        [
            "monitor", "replayer", "schema", "tests", "tracer", "txn", "xtask",
        ]
        .map(String::from),
    );
    let mut wrong = Vec::new();
    for directory in directories {
        let found = cycles(&directory);
        if !found.is_empty() {
            wrong.push(format!("{directory}: {found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
