//! The contract suite of HTTP clients.

use kubelet_probe::HyperClient;
use kubelet_testing::contract::HttpFixture;

async fn hyper() -> Option<(HyperClient, HttpFixture)> {
    Some((HyperClient::new(), HttpFixture::new()))
}

kubelet_testing::http_contract!(hyper);
