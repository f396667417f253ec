//! A gateway dies.

use longhaul_tests::client::Events;
use longhaul_tests::processes::Site;

use crate::taskstore::{Creating, create};
use crate::{assert_counted, countdown, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_stream_of_a_killed_gateway_goes_on_at_the_other() {
    let mut site = Site::shared().await;
    site.up(&["taskstore-1", "taskstore-2", "runner-1", "gateway-1", "gateway-2"]).await;
    let client = site.client("gateway-1").await;
    let id = countdown(&client, 3.0).await;
    let mut stream = waiting(&client, &id).await;

    site.kill("gateway-1");
    assert_eq!(stream.next().await, None);
    assert!(stream.broke);
    let other = client.at(&site.url("gateway-2"));
    assert_eq!(other.status(&id).await, "working", "the work itself goes on");
    let mut resumed = Events::new(other.get(stream.last_id.as_deref()).await);
    let answer = resumed.next().await.unwrap();
    assert_counted(&answer);
    assert_eq!(answer["result"]["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], id.as_str());
    assert_eq!(resumed.next().await, None);
    assert!(!resumed.broke);

    site.start("gateway-1").await;
    assert_eq!(client.status(&id).await, "completed", "the session outlives its gateway");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_among_creates_loses_none_that_it_acknowledged() {
    let mut site = Site::shared().await;
    site.up(&["taskstore-1", "runner-1", "gateway-1", "gateway-2"]).await;
    let client = site.client("gateway-1").await;
    let other = client.at(&site.url("gateway-2"));
    let creating = Creating::default();
    let kill = async {
        creating.some().await;
        // In the middle of whatever it does.
        site.kill("gateway-1");
        creating.stop();
    };
    let ((acknowledged, _), ()) = tokio::join!(create(&client, &creating), kill);
    for id in acknowledged {
        assert!(["working", "completed"].contains(&other.status(&id).await.as_str()));
    }
}
