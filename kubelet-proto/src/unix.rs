//! gRPC over unix sockets: [`connect`] or [`connect_lazy`] on one side, [`listen`] on the other.

mod connect;
mod endpoint;
mod listen;

pub use connect::{ConnectError, ConnectSettings, connect, connect_lazy};
pub use endpoint::{Endpoint, EndpointError};
pub use listen::{Incoming, ListenError, ListenSettings, listen};
