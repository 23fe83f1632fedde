//! The usual AWS chain (environment, profiles, `credential_process`, web identity, container and instance roles), over our own HTTP client.
//!
//! The chain's own client would be a second one in the tree. Plain `http` is a metadata service on the machine's own link, which no
//! proxy can reach, so only `https` honours the proxies of the environment. Redirects are not followed, an answer has at most 1 MiB.

use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_smithy_runtime_api::client::http::{
    HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector, http_client_fn,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use http::{HeaderName, HeaderValue, Method};

/// The longest answer.
const DOCUMENT: usize = 1 << 20;
/// For those of the chain's clients that name no time of their own.
const CONNECT: Duration = Duration::from_millis(3_100);
const ANSWER: Duration = Duration::from_secs(30);

/// Asks the chain, for one profile where it is named.
pub(super) async fn chain(profile: Option<&str>) -> SdkConfig {
    let client = http_client_fn(|settings, _| SharedHttpConnector::new(Connector { settings: settings.clone() }));
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(client);
    if let Some(profile) = profile {
        loader = loader.profile_name(profile);
    }
    loader.load().await
}

/// One request, one connection: a renewal is a few requests in a quarter of an hour.
#[derive(Debug)]
struct Connector {
    settings: HttpConnectorSettings,
}

/// Why a request was not sent.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("a request of the AWS chain has no body that can be sent")]
    Body,
    #[error("the answer to the AWS chain is longer than {DOCUMENT} bytes")]
    Long,
}

impl HttpConnector for Connector {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let settings = self.settings.clone();
        HttpConnectorFuture::new(async move {
            let request = translate(&request).map_err(ConnectorError::user)?;
            let mut client = reqwest::Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(settings.connect_timeout().unwrap_or(CONNECT))
                .timeout(settings.read_timeout().unwrap_or(ANSWER));
            if request.url().scheme() == "http" {
                client = client.no_proxy();
            }
            let client = client.build().map_err(|error| ConnectorError::user(error.into()))?;
            answer(client.execute(request).await.map_err(failed)?).await
        })
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

fn translate(request: &HttpRequest) -> Result<reqwest::Request, BoxError> {
    let body = request.body().bytes().ok_or(Refusal::Body)?;
    let method = Method::from_bytes(request.method().as_bytes())?;
    let mut translated = reqwest::Request::new(method, request.uri().parse()?);
    for (name, value) in request.headers() {
        let (name, value) = (HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_str(value)?);
        translated.headers_mut().append(name, value);
    }
    if !body.is_empty() {
        *translated.body_mut() = Some(body.to_vec().into());
    }
    Ok(translated)
}

async fn answer(mut response: reqwest::Response) -> Result<HttpResponse, ConnectorError> {
    let status = response.status().as_u16().try_into().map_err(|error| ConnectorError::user(Box::new(error)))?;
    let mut document = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(failed)? {
        if document.len() + piece.len() > DOCUMENT {
            return Err(ConnectorError::user(Refusal::Long.into()));
        }
        document.extend_from_slice(&piece);
    }
    let mut translated = HttpResponse::new(status, document.into());
    for (name, value) in response.headers() {
        if let Ok(value) = value.to_str() {
            translated.headers_mut().append(name.as_str().to_owned(), value.to_owned());
        }
    }
    Ok(translated)
}

fn failed(error: reqwest::Error) -> ConnectorError {
    let (is_timeout, is_connect) = (error.is_timeout(), error.is_connect());
    let error: BoxError = error.without_url().into();
    match (is_timeout, is_connect) {
        (true, true) => ConnectorError::timeout(error).never_connected(),
        (true, false) => ConnectorError::timeout(error),
        (false, true) => ConnectorError::io(error).never_connected(),
        (false, false) => ConnectorError::io(error),
    }
}
