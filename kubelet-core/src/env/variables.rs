//! The environment of one container.

use std::collections::BTreeMap;
use std::fmt;

/// An ordered set of environment variables.
///
/// A variable stands where it was first defined; defining it again replaces the value in place, so
/// that the same pod always gets the same list. `Debug` shows names only: values may be secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env {
    variables: Vec<(String, String)>,
    places: BTreeMap<String, usize>,
}

impl Env {
    /// No variables.
    pub fn new() -> Self {
        Self::default()
    }

    /// Defines a variable, or gives it another value.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let name = name.into();
        let value = value.into();
        match self.places.get(&name) {
            Some(&place) => self.variables[place].1 = value,
            None => {
                self.places.insert(name.clone(), self.variables.len());
                self.variables.push((name, value));
            }
        }
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        let place = *self.places.get(name)?;
        Some(&self.variables[place].1)
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Names and values, in order.
    pub fn into_vec(self) -> Vec<(String, String)> {
        self.variables
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        let mut env = Self::new();
        for (name, value) in variables {
            env.set(name, value);
        }
        env
    }
}
