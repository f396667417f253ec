//! Forms that ask for secrets, and their innocent neighbours.

use bytes::Bytes;
use longhaul_core::input::{Objection, Question, vet};
use serde_json::{Value, json};

/// Labels that ask for a secret, whether as the name, the title or the description of a field.
const ASKING_ANYWHERE: &[&str] = &[
    // English.
    "password",
    "Password",
    "PASSWORD",
    "Passwords",
    "Your password",
    "New password (again)",
    "your login password",
    "Database passwd",
    "Passphrase for the vault",
    "passcode",
    "Pass phrase",
    "newPwd2",
    "db_pwd",
    "DBPwd",
    "API key",
    "apiKey",
    "API_KEY",
    "api-key",
    "apikey",
    "APIKey",
    "openaiApiKey",
    "myapikey",
    "stripe_api_keys",
    "x-api-key",
    "Access key",
    "aws_access_key_id",
    "AWS secret access key",
    "awsSecretAccessKey",
    "secretKey",
    "private_key",
    "Private key (PEM)",
    "ssh_key",
    "SSH private key",
    "signingKey",
    "encryption key",
    "master key",
    "recovery key",
    "license_key",
    "token",
    "Token",
    "accessToken",
    "accesstoken",
    "githubAccessToken",
    "GitHub token",
    "refresh_token",
    "Bearer token",
    "authToken",
    "OAuth2 token",
    "session_token",
    "personal access token",
    "slack-bot-token",
    "JWT",
    "secret",
    "client_secret",
    "clientSecret",
    "Webhook secret",
    "credentials",
    "Login credentials",
    "sessionId",
    "session cookie",
    "Authorization header",
    "connectionString",
    "OTP",
    "TOTP",
    "One-time code",
    "one-time password",
    "oneTimePin",
    "2FA code",
    "mfaCode",
    "Verification code",
    "verification_code",
    "Security code",
    "Authenticator code",
    "SMS code",
    "login code",
    "access code",
    "6-digit code",
    "The code we sent you",
    "Code from your authenticator app",
    "backup codes",
    "Recovery code",
    "seed phrase",
    "Recovery phrase",
    "12-word phrase of your wallet",
    "mnemonic",
    "wallet seed",
    "PIN number",
    "Card PIN",
    "Your PIN",
    "4-digit PIN",
    "PIN code",
    "pincode",
    "Card number",
    "cardNumber",
    "card_no",
    "cardnumber",
    "Credit card number",
    "cc_number",
    "ccNum",
    "16-digit number on the front",
    "CVV",
    "cvv2",
    "CVC code",
    "card security code",
    "Card expiry date",
    "cardholderName",
    "IBAN",
    "SSN",
    "Social security number",
    "Bank account number",
    "Mother's maiden name",
    "card #",
    "Card#",
    "Credit card #",
    "cc #",
    "card ＃",
    "PIN #",
    "SSN / social security #",
    "bank account #",
    "login data",
    "Your login data",
    "loginData",
    "login details",
    "Sign-in details",
    "Security question",
    // Tricks.
    "pass_word",
    "pass word",
    "passWord",
    "p.a.s.s.w.o.r.d",
    "p a s s w o r d",
    "pAsSwOrD",
    "pass-word",
    "passw0rd",
    "p4ssw0rd",
    "Pa55word",
    "Paßwort",
    "ｐａｓｓｗｏｒｄ",
    "раssword",
    "ΡΑSSWORD",
    "pass\u{200b}word",
    "pass\u{ad}word",
    "pa\u{301}ssword",
    "𝐩𝐚𝐬𝐬𝐰𝐨𝐫𝐝",
    "ⓟⓐⓢⓢⓦⓞⓡⓓ",
    "tоken",
    "userpassword",
    "A.P.I. key",
    "a p i k e y",
    "api\u{a0}key",
    "To\u{2060}ken",
    // German.
    "Passwort",
    "Ihr Passwort",
    "Passwörter",
    "Kennwort",
    "Datenbankkennwort",
    "neuesPasswort",
    "Geheimzahl",
    "Geheimnis",
    "Zugangscode",
    "Zugangsdaten",
    "API-Schlüssel",
    "apiSchluessel",
    "API Schlüssel",
    "Privater Schlüssel",
    "geheimer Schlüssel",
    "Zugriffstoken",
    "GitHub-Token",
    "Einmalcode",
    "Sicherheitscode",
    "Bestätigungscode",
    "Kartennummer",
    "Kreditkartennummer",
    "Prüfziffer der Karte",
    "kartenpruefnummer",
    "Bestaetigungscode",
    "mTAN",
    "TAN-Nummer",
    "TAN eingeben",
    "Bitte TAN eingeben",
    "photoTAN",
    "chipTAN eingeben",
    "Logindaten",
    "Login-Daten",
    "Ihre Logindaten",
    "Ihre Zugangsdaten",
    "p#a#s#s#w#o#r#d",
    "Wiederherstellungsphrase",
    "Ihre PIN",
    "Die PIN Ihrer Karte",
    "PIN of your card",
    "PIN de la tarjeta",
    // French.
    "Mot de passe",
    "motdepasse",
    "mot_de_passe",
    "MDP",
    "Jeton d'accès",
    "Jeton",
    "Clé API",
    "Clé d’API",
    "clé secrète",
    "Clé privée",
    "Numéro de carte",
    "Numéro de votre carte bancaire",
    "Code secret",
    "Code confidentiel",
    "Code de vérification",
    "Code à usage unique",
    "Cryptogramme visuel",
    "Phrase de récupération",
    // Spanish.
    "Contraseña",
    "contrasena",
    "contrasenaNueva",
    "Clave secreta",
    "Clave de acceso",
    "clave API",
    "Token de acceso",
    "Número de tarjeta",
    "Código de seguridad",
    "Código de verificación",
    "Frase de recuperación",
    "Código PIN",
    // Portuguese.
    "Senha",
    "senha_atual",
    "Palavra-passe",
    "Chave API",
    "chave secreta",
    "Chave de acesso",
    "Número do cartão",
    "Código de segurança",
    "Código de verificação",
    "Frase de recuperação",
    // Chinese.
    "密码",
    "登录密码",
    "密 码",
    "密碼",
    "支付密码",
    "口令",
    "访问令牌",
    "API密钥",
    "私钥",
    "银行卡号",
    "信用卡卡号",
    "验证码",
    "短信验证码",
    "驗證碼",
    "助记词",
    "PIN码",
    "PIN 码",
    // Japanese.
    "パスワード",
    "新しいパスワード",
    "ﾊﾟｽﾜｰﾄﾞ",
    "暗証番号",
    "アクセストークン",
    "トークン",
    "APIキー",
    "API キー",
    "秘密鍵",
    "カード番号",
    "クレジットカード番号",
    "セキュリティコード",
    "認証コード",
    "確認コード",
    "ワンタイムパスワード",
    "リカバリーフレーズ",
    // Others.
    "Codice di sicurezza",
    "Numero di carta",
    "wachtwoord",
    "API-sleutel",
    "Hasło",
    "Numer karty",
    "Lösenord",
    "Heslo",
    "Şifre",
    "şifreniz",
    "Kart numarası",
    "Пароль",
    "пароля от почты",
    "Секретный ключ",
    "Номер карты",
    "비밀번호",
    "비밀번호를 입력",
    "카드 번호",
    "كلمة المرور",
    "رقم البطاقة",
    "पासवर्ड",
];

/// Labels that ask for a secret as a name or a title, but may be said in a description.
const ASKING_AS_LABEL: &[&str] = &[
    "key",
    "Key",
    "Your key",
    "Key (optional)",
    "Stripe key",
    "openai_key",
    "SSH keys",
    "PIN",
    "pin",
    "user_pin",
    "newPin",
    "Confirm PIN",
    "pass",
    "db_pass",
    "DBPass",
    "userPass",
    "smtp_pw",
    "pw",
    "MFA",
    "2FA",
    "TAN",
    "PAN",
    "PUK",
    "CSC",
    "Cookie",
    "Credit card",
    "Debit card",
    "Kreditkarte",
    "Schlüssel",
    "Dein Schlüssel",
    "Clave",
    "Su clave",
    "Chave",
    "Clé",
    "Votre clé",
    "Carte bancaire",
    "Tarjeta de crédito",
    "Cartão de crédito",
];

/// Labels that ask for none.
const INNOCENT: &[&str] = &[
    "Which cost centre?",
    "name",
    "Full name",
    "username",
    "userName",
    "E-mail",
    "email",
    "Phone number",
    "City",
    "Country code",
    "postalCode",
    "ZIP code",
    "Currency code",
    "Language code",
    "Error code",
    "Source code",
    "QR code",
    "Product code",
    "Discount code",
    "Cost code",
    "Dress code",
    "Unicode character",
    "token count",
    "tokenCount",
    "max_tokens",
    "maxTokens",
    "max_new_tokens",
    "Maximum tokens",
    "Number of tokens",
    "Token limit",
    "token_budget",
    "Token usage",
    "Input tokens",
    "prompt_tokens",
    "Tokens per minute",
    "Token symbol",
    "nextPageToken",
    "tokenUrl",
    "Tokenizer",
    "tokenization",
    "Design tokens",
    "keyboard layout",
    "Keyboard",
    "keyword",
    "keywords",
    "Keynote title",
    "key results",
    "Key result",
    "Key contact",
    "Key points",
    "keyFindings",
    "primary key column",
    "Primary key",
    "foreign_key",
    "sortKey",
    "Partition key",
    "Public key",
    "ssh_public_key",
    "SSH key name",
    "API key name",
    "Key length",
    "Issue key",
    "jiraProjectKey",
    "Cache key",
    "idempotencyKey",
    "Routing key",
    "Answer key",
    "Musical key",
    "Translation key",
    "monkey",
    "Turkey",
    "donkey name",
    "Whiskey",
    "hockey team",
    "Issue #",
    "Order #",
    "PR # to merge",
    "C# version",
    "# of tokens",
    "Token #",
    "Boarding pass #",
    "login date",
    "Login name",
    "last login",
    "Login data retention (days)",
    "metadata",
    "Data access level",
    "Tango",
    "standard",
    "tandem ride",
    "Tanzania",
    "Distance",
    "instance count",
    "substance",
    "passport",
    "Passport country",
    "passportNumber",
    "passenger",
    "passengers",
    "Passage",
    "compass heading",
    "Compass",
    "bypass",
    "encompass",
    "passive voice",
    "Boarding pass",
    "Ski pass",
    "pass_rate",
    "Pass or fail",
    "passion",
    "wordpress site",
    "Password policy",
    "password_length",
    "passwordless login",
    "Password manager in use",
    "PIN board colour",
    "Pin board color",
    "pin location on map",
    "GPIO pin",
    "gpioPin",
    "Number of pins",
    "Pin layout",
    "spinning wheel",
    "opinion",
    "Pinyin",
    "Shipping address",
    "Shopping list",
    "secretary name",
    "Secretary",
    "Secretariat",
    "Secret Santa budget",
    "Secret name",
    "secret_path",
    "Trade secrets law",
    "card colour",
    "cardinality",
    "Cardinal direction",
    "Business card title",
    "Cardboard size",
    "Trello card",
    "Scorecard",
    "Credit card type",
    "discard changes",
    "postcard text",
    "Account number of the customer",
    "Bank name",
    "tan colour",
    "Tangent",
    "tank size",
    "Titanium",
    "pan size",
    "Panel",
    "company",
    "Japan region",
    "span",
    "Step",
    "Laptop model",
    "desktop",
    "Option",
    "optional note",
    "Adoption date",
    "Course name",
    "seed",
    "Random seed",
    "seed_value",
    "Favourite phrase",
    "Search phrase",
    "cookie preferences",
    "Cookie recipe",
    "Cookie consent",
    "session title",
    "Session length",
    "Conference session id",
    "verification status",
    "Security level",
    "Security code review",
    "Access level",
    "Confirmation",
    "Recovery time objective",
    "Backup schedule",
    "Authentication method",
    "authorName",
    "Author",
    "authority",
    "Certificate title",
    "credit amount",
    "credit limit",
    "number of cards",
    "digit count",
    "Maiden voyage",
    "hash algorithm",
    "Encryption at rest",
    "License",
    "Licence plate",
    "wallet colour",
    "account",
    "accNumber",
    "Login name",
    "Website",
    "your phone model",
    "Environment variable name",
    // German.
    "Schlüsselübergabe am Montag",
    "Schlüsselwort",
    "Schlüsselergebnisse",
    "Primärschlüssel",
    "Notenschlüssel",
    "Tastatur",
    "Tannenbaum",
    "Tank eingeben",
    "Bestand eingeben",
    "Abstand zur Wand",
    "Zugang zum Gebäude",
    "Daten der Reise",
    "Anmeldedatum",
    "Anzahl der Token",
    "Tokenanzahl",
    "Passwortrichtlinie",
    "Kartenfarbe",
    "Speisekarte",
    "Landkarte",
    "Postleitzahl",
    "Geheimtipp für Berlin",
    "Reisepass",
    "Reisepassnummer",
    "Pinnwand",
    "Kostenstelle",
    "Tante",
    "Standort",
    "Sicherheitsstufe",
    "Bestätigung",
    // French.
    "Mots-clés",
    "Résultats clés",
    "Clé primaire",
    "Numéro de téléphone",
    "Carte du monde",
    "Numéro de commande",
    "Code postal",
    "passeport",
    "Nombre de jetons",
    // Spanish and Portuguese.
    "Palabras clave",
    "Clave primaria",
    "Punto clave",
    "Código postal",
    "Número de pedido",
    "Tarjeta de embarque",
    "Límite de tokens",
    "Palavras-chave",
    "Chave primária",
    "Número do pedido",
    "Desenhar",
    "Cartão de visita",
    "Passaporte",
    // Chinese and Japanese.
    "键盘布局",
    "关键词",
    "关键结果",
    "主键",
    "令牌数",
    "密码学课程",
    "邮政编码",
    "护照国家",
    "卡片颜色",
    "キーボード配列",
    "キーワード",
    "主キー",
    "トークン数",
    "郵便番号",
    "カードの色",
    "パスポート",
    "バスルート",
    "確認",
    // Others.
    "Parole chiave",
    "Sleutelwoord",
    "Ключевые слова",
    "الرمز البريدي",
    "열쇠 모양",
    "토큰 수",
    "암호화 방식",
];

fn form(schema: Value) -> Question {
    Question::Form { message: "Some details for your order".to_owned(), schema: Bytes::from(schema.to_string()) }
}

fn fields(fields: Value) -> Question {
    form(json!({ "type": "object", "properties": fields }))
}

fn is_refused(question: &Question) -> bool {
    match vet(question) {
        Ok(()) => false,
        Err(Objection::Secret(_)) => true,
        Err(other) => panic!("{other} at {question:?}"),
    }
}

fn as_name(label: &str) -> Question {
    fields(json!({ label: { "type": "string" } }))
}

fn as_title(label: &str) -> Question {
    fields(json!({ "x": { "type": "string", "title": label } }))
}

fn as_description(label: &str) -> Question {
    fields(json!({ "x": { "type": "string", "title": "Details", "description": label } }))
}

#[test]
fn a_field_whose_label_asks_for_a_secret_is_refused() {
    let mut missed = Vec::new();
    for label in ASKING_ANYWHERE {
        for (place, question) in
            [("name", as_name(label)), ("title", as_title(label)), ("description", as_description(label))]
        {
            if !is_refused(&question) {
                missed.push((place, label));
            }
        }
    }
    for label in ASKING_AS_LABEL {
        for (place, question) in [("name", as_name(label)), ("title", as_title(label))] {
            if !is_refused(&question) {
                missed.push((place, label));
            }
        }
    }
    assert!(missed.is_empty(), "{} were shown: {missed:?}", missed.len());
}

#[test]
fn an_innocent_label_is_shown() {
    let mut refused = Vec::new();
    for label in INNOCENT {
        for (place, question) in
            [("name", as_name(label)), ("title", as_title(label)), ("description", as_description(label))]
        {
            if let Err(objection) = vet(&question) {
                refused.push((place, label, objection));
            }
        }
    }
    assert!(refused.is_empty(), "{} were refused: {refused:#?}", refused.len());
}

#[test]
fn the_tables_are_large_enough_to_mean_something() {
    assert!(ASKING_ANYWHERE.len() + ASKING_AS_LABEL.len() >= 150 && INNOCENT.len() >= 150);
}

#[test]
fn a_message_that_plainly_asks_for_a_secret_is_refused() {
    let ask = |message: &str| {
        let schema = json!({ "type": "object", "properties": { "x": { "type": "string" } } });
        Question::Form { message: message.to_owned(), schema: Bytes::from(schema.to_string()) }
    };
    for message in [
        "Please enter your password.",
        "Almost done! To go on, paste your GitHub access token below",
        "What is your PIN?",
        "Password:",
        "Your API key?",
        "Password please",
        "I need your one-time code",
        "Type the verification code that was sent to your phone.",
        "Provide the card number and CVV.",
        "Enter the 12 words of your recovery phrase",
        "p.a.s.s.w.o.r.d please",
        "Bitte geben Sie Ihr Passwort ein: eingeben und absenden",
        "Wie lautet Ihr Kennwort?",
        "Gib deine PIN ein",
        "TAN eingeben",
        "Bitte TAN eingeben",
        "Bitte geben Sie die TAN ein",
        "Zugangsdaten eingeben",
        "Logindaten bitte",
        "Zugangsdaten:",
        "Please enter your login data",
        "Enter the card # on the front",
        "Veuillez saisir votre mot de passe",
        "Saisissez le code de vérification reçu",
        "Introduzca su contraseña",
        "Ingrese el número de tarjeta",
        "Digite sua senha",
        "Informe o código de segurança do cartão",
        "请输入您的密码",
        "请提供验证码",
        "パスワードを入力してください",
        "カード番号を教えてください",
        "비밀번호를 입력하세요",
        "Введите пароль",
    ] {
        assert!(is_refused(&ask(message)), "{message}");
    }
    for message in [
        "Which cost centre?",
        "Your password was changed. Which project should I open?",
        "The API key has expired; I rotated it. Enter a name for the report.",
        "Enter the maximum number of tokens",
        "Which type of token ring do you use?",
        "The token count is too high. Go on?",
        "Enter the primary key column",
        "Choose the keyboard layout",
        "The environment variable API_KEY is missing.",
        "Schlüsselübergabe am Montag?",
        "Enter the login date",
        "Bestand eingeben",
        "Tango eingeben",
        "Enter the issue #",
        "Ihr Passwort wurde geändert. Welches Projekt?",
        "Bitte wählen Sie eine Kostenstelle",
        "请选择键盘布局",
        "キーボード配列を入力してください",
        "トークン数を入力してください",
        "Entrez les mots-clés",
        "Introduzca las palabras clave",
    ] {
        assert_eq!(vet(&ask(message)), Ok(()), "{message}");
    }
}

#[test]
fn a_choice_between_given_values_is_refused_only_where_a_choice_names_a_secret() {
    let choice = |values: Value| fields(json!({ "x": { "type": "string", "enum": values } }));
    let titled = |title: &str| {
        fields(json!({ "x": { "type": "array", "items": { "anyOf": [{ "const": "a", "title": title }] } } }))
    };
    assert!(is_refused(&choice(json!(["name", "password"]))));
    assert!(is_refused(&titled("Your API key")));
    assert!(is_refused(&titled("パスワード")));
    assert!(is_refused(&fields(json!({ "x": { "type": "string", "enum": ["a"], "enumNames": ["Kennwort"] } }))));
    assert!(is_refused(&fields(json!({ "x": { "type": "string", "default": "your password" } }))));
    for (name, values) in [
        ("payment", json!(["Credit card", "Invoice", "IBAN transfer"])),
        ("colour", json!(["tan", "red"])),
        ("key_to_rotate", json!(["production", "staging"])),
        ("token", json!(["ERC-20", "ERC-721"])),
        ("api_key", json!(["of the shop", "of the blog"])),
    ] {
        let question = fields(json!({ name: { "type": "string", "enum": values } }));
        assert_eq!(vet(&question), Ok(()), "{name}");
    }
}

#[test]
fn yes_or_no_cannot_carry_a_secret() {
    for label in ["Rotate the API key", "rotate_token", "password_changed", "Has a credit card", "Show my password"] {
        let question = fields(json!({ "x": { "type": "boolean", "title": label }, label: { "type": "boolean" } }));
        assert_eq!(vet(&question), Ok(()), "{label}");
    }
    assert!(is_refused(&fields(
        json!({ "ok": { "type": "boolean", "description": "Then enter your password in the next field" } })
    )));
}

#[test]
fn a_number_asks_for_the_secrets_that_are_numbers() {
    let number = |name: &str| fields(json!({ name: { "type": "integer" } }));
    for name in ["pin", "cvv", "cardNumber", "verification_code", "2fa", "password", "PIN"] {
        assert!(is_refused(&number(name)), "{name}");
    }
    for name in ["tokens", "tokenCount", "keys", "secrets", "amount", "pin_count", "otp_length"] {
        assert_eq!(vet(&number(name)), Ok(()), "{name}");
    }
}

#[test]
fn a_pin_code_beside_an_address_is_a_postal_code() {
    let text = || json!({ "type": "string" });
    assert_eq!(vet(&fields(json!({ "city": text(), "pin_code": text() }))), Ok(()));
    assert_eq!(vet(&fields(json!({ "streetAddress": text(), "pincode": text() }))), Ok(()));
    assert!(is_refused(&fields(json!({ "name": text(), "pin_code": text() }))));
    assert!(is_refused(&fields(json!({ "city": text(), "card_pin": text() }))));
}

#[test]
fn the_objection_names_the_field_and_what_it_asks_for() {
    let objection = |question: &Question| vet(question).unwrap_err().to_string();
    assert_eq!(
        objection(&fields(json!({ "note": { "type": "string" }, "dbPwd": { "type": "string" } }))),
        r#"a form must not ask for a secret: "dbPwd: pwd"; ask for a URL to be opened instead"#
    );
    let long = "é".repeat(5000);
    let question = fields(json!({ long: { "type": "string", "title": "Password" } }));
    assert!(objection(&question).len() < 300);
}

#[test]
fn forms_of_the_reference_servers_are_shown() {
    for question in [
        fields(json!({
            "name": { "title": "String", "type": "string", "description": "Your full, legal name" },
            "email": { "type": "string", "format": "email",
                "description": "Your email address (will be verified, and never shared with anyone else)" },
            "integer": { "type": "integer", "minimum": 1, "maximum": 100, "default": 42,
                "description": "Your favorite integer (do not give us your phone number, pin, or other sensitive info)" },
        })),
        form(json!({ "title": "ScalarElicitationType", "type": "object", "required": ["value"],
            "properties": { "value": { "title": "Value", "type": "string" } } })),
    ] {
        assert_eq!(vet(&question), Ok(()));
    }
}

#[test]
fn the_largest_form_is_read_in_linear_time() {
    for filler in ["token count ", "a ", "api key ", "p.a.s.s.", "密", "ﾊﾟ", "s"] {
        let message = filler.repeat(60 * 1024 / filler.len());
        let schema = Bytes::from_static(br#"{"type":"object","properties":{}}"#);
        let started = std::time::Instant::now();
        let _ = vet(&Question::Form { message, schema });
        assert!(started.elapsed().as_secs() < 20, "{filler:?} took {:?}", started.elapsed());
    }
}
