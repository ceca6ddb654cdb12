//! From a tree to a typed value, keeping track of the path.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::UnknownField;
use super::error::ManifestError;
use super::node::{Key, MAX_NODES, Mark, Node, Value};
use super::path::Path;

/// More unknown fields than this are not listed; such a text is something else than a pod.
const MAX_UNKNOWN: usize = 1000;

/// Decodes `node`, found at `path`. In JSON a number with a decimal point fits no integer field.
pub(super) fn from_node<T: DeserializeOwned>(
    node: &Node,
    path: &Path<'_>,
    json: bool,
) -> Result<(T, Vec<UnknownField>), ManifestError> {
    let run = Run {
        json,
        visits: Cell::new(0),
        unknown: RefCell::default(),
    };
    let value = T::deserialize(Place {
        node,
        path,
        name_at: node.at,
        quantity: false,
        run: &run,
    })
    .map_err(|err| err.0)?;
    Ok((value, run.unknown.into_inner()))
}

struct Run {
    json: bool,
    visits: Cell<u32>,
    unknown: RefCell<Vec<UnknownField>>,
}

/// Carries a [`ManifestError`] through serde; it gets its place at the innermost value.
#[derive(Debug)]
struct DecodeError(ManifestError);

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for DecodeError {}

impl serde::de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(ManifestError::new(message.to_string()))
    }
}

/// One value in its place.
#[derive(Clone, Copy)]
struct Place<'a> {
    node: &'a Node,
    path: &'a Path<'a>,
    /// Where the field's name stands.
    name_at: Mark,
    /// Quantities may be written as numbers.
    quantity: bool,
    run: &'a Run,
}

impl<'a> Place<'a> {
    fn done<T>(self, outcome: Result<T, DecodeError>) -> Result<T, DecodeError> {
        outcome.map_err(|DecodeError(err)| {
            let placed = err.line().is_some();
            DecodeError(if placed {
                err
            } else {
                ManifestError::at(self.node, err.message()).with_path(self.path)
            })
        })
    }

    fn count(self) -> Result<(), DecodeError> {
        let visits = self.run.visits.get() + 1;
        self.run.visits.set(visits);
        if visits > MAX_NODES {
            self.done(Err(DecodeError::custom("aliases make the manifest too large")))
        } else {
            Ok(())
        }
    }

    fn seq<'de, V: Visitor<'de>>(self, items: &'a [Arc<Node>], visitor: V) -> Result<V::Value, DecodeError> {
        self.done(visitor.visit_seq(Items {
            place: self,
            items: items.iter().enumerate(),
        }))
    }

    fn map<'de, V: Visitor<'de>>(
        self,
        entries: &'a [(Key, Arc<Node>)],
        typed: bool,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.done(visitor.visit_map(Entries {
            place: self,
            entries: entries.iter(),
            current: None,
            typed,
        }))
    }

    fn text<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match &self.node.value {
            Value::Null => self.done(visitor.visit_str(if self.quantity { "0" } else { "" })),
            Value::Int(number) if self.quantity => self.done(visitor.visit_string(number.to_string())),
            Value::Float(number, text) if self.quantity && number.is_finite() => self.done(visitor.visit_str(text)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn number<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Null => self.done(visitor.visit_u64(0)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn integer<'de, V: Visitor<'de>>(self, value: i128, visitor: V) -> Result<V::Value, DecodeError> {
        self.done(match (i64::try_from(value), u64::try_from(value)) {
            (Ok(value), _) => visitor.visit_i64(value),
            (_, Ok(value)) => visitor.visit_u64(value),
            _ => visitor.visit_i128(value),
        })
    }

    /// YAML's `5.0` is an integer once it has been through JSON.
    fn whole(self, value: f64) -> Option<i128> {
        let whole = !self.run.json && value.fract() == 0.0 && value.abs() < 9.0e15;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "whole and far inside the range, as just checked"
        )]
        whole.then_some(value as i128)
    }
}

impl<'de> Deserializer<'de> for Place<'_> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.count()?;
        match &self.node.value {
            Value::Null => self.done(visitor.visit_unit()),
            Value::Bool(value) => self.done(visitor.visit_bool(*value)),
            Value::Int(value) => self.integer(*value, visitor),
            Value::Float(value, _) => match self.whole(*value) {
                Some(value) => self.integer(value, visitor),
                None => self.done(visitor.visit_f64(*value)),
            },
            Value::Text(text) => self.done(visitor.visit_str(text)),
            Value::Seq(items) => self.seq(items, visitor),
            Value::Map(entries) => self.map(entries, false, visitor),
        }
    }

    // Null means unset everywhere: each type gets its empty value.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Null => self.done(visitor.visit_none()),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Null => self.done(visitor.visit_bool(false)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.text(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.text(visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.number(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.number(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.number(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Null => self.seq(&[], visitor),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        match self.node.value {
            Value::Null => self.map(&[], false, visitor),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.count()?;
        match &self.node.value {
            Value::Null => self.map(&[], true, visitor),
            Value::Map(entries) => self.map(entries, true, visitor),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(Self {
            quantity: name == "Quantity",
            ..self
        })
    }

    /// Asked for exactly where a type does not know a field's name. The value is not walked.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let mut unknown = self.run.unknown.borrow_mut();
        if unknown.len() < MAX_UNKNOWN {
            unknown.push(UnknownField {
                path: self.path.to_string(),
                line: Some(self.name_at.line),
            });
        }
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

struct Items<'a, I> {
    place: Place<'a>,
    items: I,
}

impl<'de, 'a, I: Iterator<Item = (usize, &'a Arc<Node>)>> SeqAccess<'de> for Items<'a, I> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        let Some((index, node)) = self.items.next() else {
            return Ok(None);
        };
        let path = Path::Index {
            parent: self.place.path,
            index,
        };
        let place = Place {
            node,
            path: &path,
            name_at: node.at,
            quantity: false,
            run: self.place.run,
        };
        place.done(seed.deserialize(place)).map(Some)
    }
}

struct Entries<'a, I> {
    place: Place<'a>,
    entries: I,
    current: Option<(&'a Key, &'a Node)>,
    /// Keys are the fields of a type, not data.
    typed: bool,
}

impl<'de, 'a, I: Iterator<Item = &'a (Key, Arc<Node>)>> MapAccess<'de> for Entries<'a, I> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        let Some((key, node)) = self.entries.next() else {
            return Ok(None);
        };
        self.current = Some((key, node));
        seed.deserialize(serde::de::value::StrDeserializer::new(&key.name))
            .map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, DecodeError> {
        let (key, node) = self
            .current
            .take()
            .ok_or_else(|| DecodeError::custom("a value was asked for before its key"))?;
        let parent = self.place.path;
        let path = if self.typed {
            Path::Field {
                parent,
                name: &key.name,
            }
        } else {
            Path::Key { parent, key: &key.name }
        };
        let place = Place {
            node,
            path: &path,
            name_at: key.at,
            quantity: false,
            run: self.place.run,
        };
        place.done(seed.deserialize(place))
    }
}
