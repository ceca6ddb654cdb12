//! Credentials for registries.

use std::fmt;

/// What a registry is shown for a pull. `Debug` shows nothing of it.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegistryAuth {
    /// The user's name.
    pub username: String,
    /// The password; it goes with the name.
    pub password: String,
    /// The user's address. No registry asks for it, but it is part of what tells two credentials apart.
    pub email: String,
    /// A token that stands for name and password.
    pub identity_token: String,
    /// A bearer token.
    pub registry_token: String,
}

impl RegistryAuth {
    /// A user's name and password.
    pub fn basic(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            username: username.into(),
            password: password.into(),
            ..Self::default()
        }
    }
}

impl fmt::Debug for RegistryAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryAuth").finish_non_exhaustive()
    }
}
