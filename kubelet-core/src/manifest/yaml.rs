//! The first document of a YAML text, as a tree.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_saphyr::granit_parser::{Event, Marker, Options, Parser, ScalarStyle, ScanError, StrInput, Tag};

use super::error::ManifestError;
use super::node::{Key, MAX_DEPTH, MAX_NODES, Mark, Node, Value};
use super::scalar;

/// Reads the first document; later ones are not even looked at.
pub(super) fn parse(text: &str) -> Result<Arc<Node>, ManifestError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut options = Options::default();
    options.set_emit_comments(false);
    options.flow_nesting_limit = usize::from(MAX_DEPTH);
    options.block_nesting_limit = usize::from(MAX_DEPTH);
    let mut reader = Reader {
        parser: Parser::new_from_str_with_options(text, options),
        anchors: BTreeMap::new(),
        nodes: 0,
    };
    loop {
        match reader.next()? {
            (Event::StreamEnd, at) => return Ok(Arc::new(Node::new(at, Value::Null))),
            (Event::DocumentStart(..), _) => break,
            _ => {}
        }
    }
    let (event, at) = reader.next()?;
    let root = reader.node(event, at, 0)?;
    // The rest of the document is syntax only, but a broken end must not pass: a file may still be in writing.
    while !matches!(reader.next()?, (Event::DocumentEnd | Event::StreamEnd, _)) {}
    Ok(root)
}

struct Reader<'t> {
    parser: Parser<'t, StrInput<'t>>,
    anchors: BTreeMap<usize, Arc<Node>>,
    nodes: u32,
}

impl<'t> Reader<'t> {
    fn next(&mut self) -> Result<(Event<'t>, Mark), ManifestError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, mark(&span.start))),
            Some(Err(err)) => Err(malformed(&err)),
            None => Err(ManifestError::new("the text ends too early")),
        }
    }

    fn node(&mut self, event: Event<'t>, at: Mark, level: u16) -> Result<Arc<Node>, ManifestError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(ManifestError::new("the manifest has too many values").with_mark(at));
        }
        if level > MAX_DEPTH {
            return Err(too_deep(at));
        }
        let (anchor, node) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                (anchor, Node::new(at, typed(&text, style, tag.as_deref(), at)?))
            }
            Event::SequenceStart(_, anchor, _) => (anchor, Node::new(at, self.sequence(level)?)),
            Event::MappingStart(_, anchor, _) => (anchor, Node::new(at, self.mapping(level)?)),
            Event::Alias(id) => {
                // An anchor is known once its node is complete, so an alias cannot contain itself.
                let target = self.anchors.get(&id).ok_or_else(|| {
                    ManifestError::new("this alias stands for a value that is not complete here").with_mark(at)
                })?;
                return Ok(Arc::clone(target));
            }
            other => return Err(ManifestError::new(format!("unexpected {other:?}")).with_mark(at)),
        };
        if node.depth > MAX_DEPTH {
            return Err(too_deep(at));
        }
        let node = Arc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Arc::clone(&node));
        }
        Ok(node)
    }

    fn sequence(&mut self, level: u16) -> Result<Value, ManifestError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::Seq(items)),
                (event, at) => items.push(self.node(event, at, level + 1)?),
            }
        }
    }

    fn mapping(&mut self, level: u16) -> Result<Value, ManifestError> {
        let mut entries: Vec<(Key, Arc<Node>)> = Vec::new();
        let mut seen: HashSet<Box<str>> = HashSet::new();
        let mut merged: Vec<Arc<Node>> = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                break;
            }
            let merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, ..) if text == "<<");
            let key = self.node(event, at, level + 1)?;
            let (event, value_at) = self.next()?;
            let value = self.node(event, value_at, level + 1)?;
            if merge {
                merged.push(value);
                continue;
            }
            let name = key_name(&key, at)?;
            if !seen.insert(name.clone()) {
                return Err(duplicate(&entries, &name, at));
            }
            entries.push((Key { name, at }, value));
        }
        for source in merged {
            self.merge(&source, &mut seen, &mut entries)?;
        }
        Ok(Value::Map(entries))
    }

    /// Adds what the mapping does not have yet; of several sources the first wins.
    fn merge(
        &mut self,
        source: &Node,
        seen: &mut HashSet<Box<str>>,
        into: &mut Vec<(Key, Arc<Node>)>,
    ) -> Result<(), ManifestError> {
        let wrong = || ManifestError::at(source, "a merge key takes a mapping or a sequence of mappings");
        let sources: Vec<&Node> = match &source.value {
            Value::Map(_) => vec![source],
            Value::Seq(items) => items.iter().map(|item| &**item).collect(),
            _ => return Err(wrong()),
        };
        for source in sources {
            let Value::Map(entries) = &source.value else {
                return Err(wrong());
            };
            // Copies count like values that are written out, or merges of merges would grow without bound.
            self.nodes = self
                .nodes
                .saturating_add(u32::try_from(entries.len()).unwrap_or(u32::MAX));
            if self.nodes > MAX_NODES {
                return Err(ManifestError::at(source, "the manifest has too many values"));
            }
            for (key, value) in entries {
                if seen.insert(key.name.clone()) {
                    into.push((key.clone(), Arc::clone(value)));
                }
            }
        }
        Ok(())
    }
}

fn typed(text: &str, style: ScalarStyle, tag: Option<&Tag>, at: Mark) -> Result<Value, ManifestError> {
    let wrong = |what: &str| Err(ManifestError::new(format!("{text:?} is no {what}")).with_mark(at));
    let plain = style == ScalarStyle::Plain;
    match tag.map(|tag| tag.core_suffix()) {
        None if plain => Ok(scalar::resolve(text)),
        None | Some(Some("str")) => Ok(Value::Text(text.into())),
        Some(Some("null")) => Ok(Value::Null),
        Some(Some("bool")) => match scalar::resolve(text) {
            value @ Value::Bool(_) => Ok(value),
            _ => wrong("boolean"),
        },
        Some(Some("int")) => match scalar::resolve(text) {
            value @ Value::Int(_) => Ok(value),
            _ => wrong("integer"),
        },
        Some(Some("float")) => match scalar::resolve(text) {
            value @ (Value::Int(_) | Value::Float(..)) => Ok(value),
            _ => wrong("number"),
        },
        // Private tags say nothing about JSON types, so the text counts as it stands; `!` means "do not resolve".
        Some(_) if plain && tag.is_some_and(|tag| !tag.suffix().is_empty()) => Ok(scalar::resolve(text)),
        Some(_) => Ok(Value::Text(text.into())),
    }
}

/// Keys are text in JSON; YAML's numbers and booleans become their canonical text.
fn key_name(key: &Node, at: Mark) -> Result<Box<str>, ManifestError> {
    match key.value {
        Value::Null | Value::Seq(_) | Value::Map(_) => {
            Err(ManifestError::new("a mapping key must be a string, a number or a boolean").with_mark(at))
        }
        _ => Ok(key.scalar().unwrap_or_default().into()),
    }
}

pub(super) fn duplicate(entries: &[(Key, Arc<Node>)], name: &str, at: Mark) -> ManifestError {
    let first = entries
        .iter()
        .find(|(key, _)| &*key.name == name)
        .map_or(0, |(key, _)| key.at.line);
    ManifestError::new(format!("key {name:?} is already set on line {first}")).with_mark(at)
}

pub(super) fn too_deep(at: Mark) -> ManifestError {
    ManifestError::new(format!("values are nested more than {MAX_DEPTH} levels deep")).with_mark(at)
}

fn malformed(err: &ScanError) -> ManifestError {
    ManifestError::new(err.info()).with_mark(mark(err.marker()))
}

fn mark(at: &Marker) -> Mark {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Mark {
        line: number(at.line()),
        column: number(at.col().saturating_add(1)),
    }
}
