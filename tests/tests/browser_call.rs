//! Two people hold a call in the browser: headless Chromium, two windows, real servers that go away meanwhile.

use std::{error::Error, path::Path, time::Duration};

use mongodb::bson::doc;
use serde_json::{Value, json};
use thirtyfour::{By, ChromiumLikeCapabilities, DesiredCapabilities, WebDriver, WindowHandle, prelude::Key};
use transcript_tests::{
    browser_call::{BrowserCall, Chromedriver, on_path},
    cargo,
    wait::wait_until,
};

type TestResult<T = ()> = Result<T, Box<dyn Error>>;

const LONG: Duration = Duration::from_secs(90);
const WIDTHS: [u32; 2] = [390, 1440];
/// A name that is markup.
const BEN: &str = "<i>Ben</i>";

#[tokio::test]
async fn two_people_hold_a_call_see_each_other_and_get_the_summary() -> TestResult {
    let Some((chromedriver, browser)) = on_path("chromedriver").zip(on_path("chromium")) else {
        eprintln!("skipped: chromium and chromedriver are not installed (Debian: chromium, chromium-driver)");
        return Ok(());
    };
    let traces = tempfile::tempdir()?;
    let (call, chromedriver) = tokio::join!(BrowserCall::start(traces.path()), Chromedriver::start(chromedriver));
    let (mut call, chromedriver) = (call?, chromedriver?);
    let driver = WebDriver::new(chromedriver.url(), capabilities(&browser)?).await?;
    let held = hold(&driver, &mut call).await;
    let page = driver.source().await.unwrap_or_default();
    driver.quit().await?;
    held.map_err(|error| format!("{error}; the page was:\n{page}").into())
}

async fn hold(driver: &WebDriver, call: &mut BrowserCall) -> TestResult {
    let (ann, ben) = begin(driver, call).await?;
    lose_the_transcriber(driver, call, &ann).await?;
    lose_mongodb(driver, call, &ben).await?;
    lose_nats_and_hang_up(driver, call, [&ann, &ben]).await?;
    get_the_summary(driver, call, [&ann, &ben]).await
}

/// Both open the same address, and see what the other says as it was typed.
async fn begin(driver: &WebDriver, call: &BrowserCall) -> TestResult<(WindowHandle, WindowHandle)> {
    let tools = driver.cdp();
    let hears = json!({ "source": HEARS });
    tools.send_raw("Page.addScriptToEvaluateOnNewDocument", hears).await?;
    driver.goto(call.address()).await?;
    awaits(driver, "name").await?;
    look(driver, "join").await?;
    let ann = join(driver, "Ann").await?;
    says(driver, "Shall we begin?").await?;
    sees(driver, "Ann: Shall we begin?").await?;
    let microphone = driver.find(By::Id("microphone")).await?;
    for is_pressed in ["true", "false"] {
        microphone.send_keys(" ").await?;
        assert_eq!(microphone.attr("aria-pressed").await?.as_deref(), Some(is_pressed));
    }
    sees(driver, "Ann: This was heard.").await?;
    driver.find(By::Id("text")).await?.focus().await?;
    let ben = driver.new_tab().await?;
    driver.switch_to_window(ben).await?;
    driver.goto(call.address()).await?;
    awaits(driver, "name").await?;
    let ben = join(driver, BEN).await?;
    sees(driver, "Ann: Shall we begin?").await?;

    // A text that is too long stays in the field, with the reason.
    driver.execute("document.getElementById('text').value = 'long '.repeat(401)", vec![]).await?;
    says(driver, "").await?;
    shows(driver, "text-problem", "This is 4 characters too long. Say it in parts of at most 2000.").await?;
    driver.execute("document.getElementById('text').value = ''", vec![]).await?;
    says(driver, "<b>One moment</b>, please.").await?;
    driver.switch_to_window(ann.clone()).await?;
    sees(driver, "<i>Ben</i>: <b>One moment</b>, please.").await?;
    assert_eq!(driver.find_all(By::Css("main b, main i")).await?.len(), 0, "markup that somebody said is markup");
    look(driver, "call").await?;
    Ok((ann, ben))
}

/// What is said meanwhile is kept in the window, also when the page is loaded again, and stored once.
async fn lose_the_transcriber(driver: &WebDriver, call: &mut BrowserCall, ann: &WindowHandle) -> TestResult {
    driver.switch_to_window(ann.clone()).await?;
    call.kill_transcriber().await?;
    shows(driver, "connection", "Not connected").await?;
    tells(driver, "The transcriber cannot be reached. What you say is kept in this window").await?;
    says(driver, "Are you still there?").await?;
    sees(driver, "Are you still there? (not stored yet)").await?;
    look(driver, "away").await?;
    driver.refresh().await?;
    sees(driver, "Are you still there? (not stored yet)").await?;
    says(driver, "I have loaded the page again.").await?;
    call.start_transcriber_again().await?;
    sees(driver, "Ann: Are you still there?").await?;
    sees(driver, "Ann: I have loaded the page again.").await?;
    shows(driver, "connection", "Connected").await?;
    shows(driver, "faults", "").await?;
    assert_eq!(stored(call).await?, 5);
    // The page that is loaded again has everything, and sends nothing a second time.
    driver.refresh().await?;
    shows(driver, "connection", "Connected").await?;
    sees(driver, "<i>Ben</i>: <b>One moment</b>, please.").await?;
    assert_eq!(driver.find_all(By::Css("#said li")).await?.len(), 5);
    Ok(())
}

async fn lose_mongodb(driver: &WebDriver, call: &mut BrowserCall, ben: &WindowHandle) -> TestResult {
    driver.switch_to_window(ben.clone()).await?;
    call.world.mongod().process().freeze().await?;
    tells(driver, "MongoDB does not answer.").await?;
    says(driver, "Nobody can read this yet.").await?;
    sees(driver, "Nobody can read this yet. (not stored yet)").await?;
    call.world.mongod().process().thaw().await?;
    sees(driver, "<i>Ben</i>: Nobody can read this yet.").await?;
    shows(driver, "faults", "").await?;
    assert_eq!(stored(call).await?, 6);
    Ok(())
}

/// No summary can be announced without NATS: the page says so, and the summary comes once it is back.
async fn lose_nats_and_hang_up(driver: &WebDriver, call: &mut BrowserCall, windows: [&WindowHandle; 2]) -> TestResult {
    call.world.nats.process().kill().await?;
    for window in windows {
        driver.switch_to_window(window.clone()).await?;
        // By keyboard alone.
        driver.find(By::Id("hang-up")).await?.send_keys(Key::Enter + "").await?;
        shows(driver, "connection", "You have hung up").await?;
        let focused = driver.active_element().await?.id().await?;
        assert_eq!(focused.as_deref(), Some("summary-title"));
    }
    tells(driver, "The summary has to wait: there is no connection to NATS").await?;
    call.world.nats.start_again().await?;
    shows(driver, "faults", "").await
}

async fn get_the_summary(driver: &WebDriver, call: &BrowserCall, windows: [&WindowHandle; 2]) -> TestResult {
    for window in windows {
        driver.switch_to_window(window.clone()).await?;
        shows(driver, "progress", "The summary is here.").await?;
        let summary = driver.find(By::Id("summary")).await?.text().await?;
        assert!(summary.contains("6 segments") && summary.contains("; complete."), "{summary}");
        assert!(summary.contains("Ann") && summary.contains(BEN), "{summary}");
        assert!(summary.contains("Questions"), "{summary}");
    }
    look(driver, "summary").await?;
    wait_until("the call is announced", LONG, || async {
        let announced = call.world.notifications().await.map_err(|error| error.to_string())?.len();
        if announced == 1 { Ok(()) } else { Err(format!("{announced} notifications")) }
    })
    .await?;

    let timeline = driver.find(By::Id("timeline")).await?.prop("href").await?.ok_or("no timeline")?;
    let here = driver.current_url().await?;
    wait_until("the timeline is drawn", LONG, || async {
        driver.goto(&timeline).await.map_err(|error| error.to_string())?;
        let source = driver.source().await.map_err(|error| error.to_string())?;
        if source.contains("<svg") { Ok(()) } else { Err(source) }
    })
    .await?;
    // Who opens the address again joins the next call.
    driver.goto(call.address()).await?;
    awaits(driver, "name").await?;
    assert_ne!(driver.current_url().await?, here);
    Ok(())
}

/// A browser's recognition of speech, which hears one sentence whenever it begins to listen.
const HEARS: &str = r#"
window.SpeechRecognition = class extends EventTarget {
  start() {
    const result = Object.assign([{ transcript: " This was heard. " }], { isFinal: true });
    this.dispatchEvent(new Event("speechstart"));
    this.dispatchEvent(Object.assign(new Event("result"), { results: [result], resultIndex: 0 }));
  }
  stop() {
    this.dispatchEvent(new Event("end"));
  }
};
"#;

async fn stored(call: &BrowserCall) -> TestResult<u64> {
    Ok(call.world.segments().count_documents(doc! {}).await?)
}

async fn awaits(driver: &WebDriver, id: &str) -> TestResult {
    wait_until(format!("{id} is on the page"), LONG, || async {
        driver.find(By::Id(id.to_owned())).await.map(|_| ()).map_err(|error| error.to_string())
    })
    .await?;
    Ok(())
}

/// Joins in the window that is shown, with the keyboard, and gives the window.
async fn join(driver: &WebDriver, name: &str) -> TestResult<WindowHandle> {
    driver.find(By::Id("name")).await?.send_keys(name.to_owned() + Key::Enter).await?;
    shows(driver, "connection", "Connected").await?;
    Ok(driver.window().await?)
}

async fn says(driver: &WebDriver, text: &str) -> TestResult {
    // The field has the focus, as it has after every line.
    let field = driver.active_element().await?;
    assert_eq!(field.id().await?.as_deref(), Some("text"));
    field.send_keys(text.to_owned() + Key::Enter).await?;
    Ok(())
}

/// Waits until this line is among what is said, or among what is not stored yet.
async fn sees(driver: &WebDriver, line: &str) -> TestResult {
    wait_until(format!("{line:?} is seen"), LONG, || async {
        let call = driver.find(By::Id("call")).await.map_err(|error| error.to_string())?;
        let text = call.text().await.map_err(|error| error.to_string())?;
        if text.lines().any(|seen| seen == line) { Ok(()) } else { Err(text) }
    })
    .await?;
    Ok(())
}

/// Waits until a fault begins so.
async fn tells(driver: &WebDriver, beginning: &str) -> TestResult {
    wait_until(format!("{beginning:?} is told"), LONG, || async {
        let faults = driver.find(By::Id("faults")).await.map_err(|error| error.to_string())?;
        let text = faults.text().await.map_err(|error| error.to_string())?;
        if text.lines().any(|fault| fault.starts_with(beginning)) { Ok(()) } else { Err(text) }
    })
    .await?;
    Ok(())
}

async fn shows(driver: &WebDriver, id: &str, wanted: &str) -> TestResult {
    wait_until(format!("{id} shows {wanted:?}"), LONG, || async {
        let shown = driver.find(By::Id(id.to_owned())).await.map_err(|error| error.to_string())?;
        let text = shown.text().await.map_err(|error| error.to_string())?;
        if text == wanted { Ok(()) } else { Err(text) }
    })
    .await?;
    Ok(())
}

/// Looks at the page on a phone and at a desk, by day and by night: nothing is wider than the window, every field has a
/// label, and the text stands out from its background. Keeps pictures in the target directory.
async fn look(driver: &WebDriver, name: &str) -> TestResult {
    let tools = driver.cdp();
    let pictures = cargo::target_dir().join("call-page");
    std::fs::create_dir_all(&pictures)?;
    for width in WIDTHS {
        for scheme in ["light", "dark"] {
            let metrics = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500 });
            tools.send_raw("Emulation.setDeviceMetricsOverride", metrics).await?;
            let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
            tools.send_raw("Emulation.setEmulatedMedia", media).await?;
            let found: Value = driver.execute(CHECKS, vec![]).await?.convert()?;
            assert_eq!(found, json!([]), "{name} at {width}, {scheme}");
            driver.screenshot(&pictures.join(format!("{name}-{width}-{scheme}.png"))).await?;
        }
    }
    tools.send_raw("Emulation.clearDeviceMetricsOverride", json!({})).await?;
    Ok(())
}

/// What is wrong with the page as it is shown. The contrast is that of WCAG 2.2, 1.4.3, and a touch target that of 2.5.8.
const CHECKS: &str = r#"
const wrong = [];
if (document.documentElement.scrollWidth > window.innerWidth) wrong.push("it is wider than the window");
if (!document.documentElement.lang) wrong.push("it has no language");
const light = (color) => {
  const parts = color.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const background = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if (color !== "rgba(0, 0, 0, 0)" && color !== "transparent") return color;
  }
  return "rgb(255, 255, 255)";
};
for (const element of document.querySelectorAll("body *")) {
  const box = element.getBoundingClientRect();
  if (box.width === 0 || element.closest("[hidden]")) continue;
  const name = `${element.tagName.toLowerCase()}#${element.id} ${element.textContent.trim().slice(0, 20)}`;
  if (element.matches("input") && element.labels.length === 0) wrong.push(`${name} has no label`);
  if (element.matches("input, button") && box.height < 24) wrong.push(`${name} is too small to be touched`);
  if (![...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())) continue;
  if (element.disabled) continue;
  const [one, other] = [light(getComputedStyle(element).color), light(background(element))];
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (contrast < 4.5) wrong.push(`${name} has a contrast of ${contrast.toFixed(1)}`);
}
return wrong;
"#;

fn capabilities(browser: &Path) -> TestResult<thirtyfour::ChromeCapabilities> {
    let mut capabilities = DesiredCapabilities::chrome();
    capabilities.set_binary(&browser.to_string_lossy())?;
    // A container has neither a user namespace nor much shared memory.
    for argument in ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"] {
        capabilities.add_arg(argument)?;
    }
    Ok(capabilities)
}
