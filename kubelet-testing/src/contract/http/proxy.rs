//! The promise that needs an environment of its own.

use kubelet_core::HttpClient;

use crate::contract::http::HttpFixture;
use crate::contract::http::limits::send;
use crate::contract::server::{Answer, Server};

/// No proxy is used, whatever the environment says.
///
/// # Panics
/// If the promise is broken.
pub async fn no_proxy_is_used(client: &dyn HttpClient, fixture: &HttpFixture) {
    let server = Server::always(Answer::whole(200, "straight")).await;
    match send(client, fixture, server.get("/", fixture.patience)).await {
        Ok(answer) => assert_eq!(answer.body, "straight"),
        Err(error) => panic!("a request in an environment with a proxy gives {error:?}"),
    }
    let heads = server.heads();
    assert!(heads[0].starts_with("GET / "), "the request is {:?}", heads[0]);
}
